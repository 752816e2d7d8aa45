"""Self-signed certificates for servers of tests, made when needed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

VALID_FOR = timedelta(days=1)


def write_certificate(directory: Path, address: str) -> tuple[Path, Path]:
    """For a server at an IP address: the certificate, which is also the CA to trust, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + VALID_FOR)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    public, secret = directory / "public.pem", directory / "secret.pem"
    public.write_bytes(made.public_bytes(Encoding.PEM))
    secret.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return public, secret


def write_corporate_certificates(directory: Path, address: str) -> tuple[Path, Path, Path]:
    """The certificate of an authority as TLS inspection has them, and certificate and key of a server.

    Without key usage and without identifiers of keys, both of which `ssl.VERIFY_X509_STRICT` insists on.
    """
    now = datetime.now(UTC)
    authority_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority_name, server_name = (
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in ("Corporate", "server")
    )

    def begun(subject: x509.Name, key: ec.EllipticCurvePrivateKey, number: int) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(authority_name)
            .public_key(key.public_key())
            .serial_number(number)
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + VALID_FOR)
        )

    authority = (
        begun(authority_name, authority_key, 8)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    server = (
        begun(server_name, server_key, 9)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))]), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    trusted, public, secret = (directory / name for name in ("authority.pem", "server.pem", "server-key.pem"))
    trusted.write_bytes(authority.public_bytes(Encoding.PEM))
    public.write_bytes(server.public_bytes(Encoding.PEM))
    secret.write_bytes(server_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return trusted, public, secret
