"""docs/use/configuration.md, rendered from the table of keys: `make docs`.

The page is for operators. A test keeps it current. It must not say anything that the table or the rules do not.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from properties.keys import KEYS
from properties.keytypes import Effect, Key, Section, ValueKind
from properties.spark import KEYS as SPARK_KEYS
from properties.validation import default_text, range_text

ALL_KEYS = (*KEYS, *SPARK_KEYS)
_NO_LIMIT = 1e300  # Java spells "no limit" as the largest double

_INTRODUCTION = """\
# Configuration

<!-- Written by `python -m properties.reference`; change the key table (properties/keys.py) instead of this page. -->

For those who write a `.properties` file or look up a key.

The daemon reads the `.properties` file of Amazon's MultiLangDaemon (KCL 3.x for Java). One file can serve both:
keys that only this daemon knows begin with `mld.` (and `cloudWatchEndpoint`), which Java ignores.

`mld check app.properties` shows every key with its value in effect and where it comes from, what the fleet costs in
DynamoDB, and every problem with its remedy. A file needs at least:

```properties
executableName = python3 -m my_processor
applicationName = my-application
streamName = my-stream
AwsCredentialsProvider = DefaultCredentialsProvider
regionName = eu-west-1
```

## The file

- A line is `key = value`, `key: value` or `key value`. `#` or `!` at the start of a line makes a comment; later
  in a line it is part of the value. Quotes are part of the value, too.
- A line that ends in `\\` goes on in the next one. `\\t`, `\\n`, `\\r`, `\\f` and `\\uXXXX` are escapes; any
  other character after a `\\` stands for itself, so a Windows path needs `\\\\`.
- The file is UTF-8 or ISO-8859-1. Java reads ISO-8859-1 only: write `\\uXXXX` if both read the file.
- Keys are case-sensitive; only the prefix `AwsCredentialsProvider` may be written in any case. If a key, or two
  spellings of one setting, are given twice, the last line counts, with a warning.
- Values are trimmed. A boolean is `true`, `yes`, `y`, `on`, `1` or `false`, `no`, `n`, `off`, `0`. Words like
  `POLLING` may be written in any case. A duration is `PT30S`, `PT24H` or `P1DT12H`.
- A key this daemon does not know is ignored with a warning that names the nearest known key.

### Environment variables

`${NAME}` in a value is replaced by the environment variable, `${NAME:-default}` by the default if the variable
is unset or empty. An unset variable without a default is an error. `$${` is a literal `${`. Java does none of
this.

### Overrides

`-D key=value` on the command line wins over the file, for any key: `mld app.properties -D maxRecords=500`. The
value is taken as it is (no `\\` escapes); `${NAME}` works. Every user of the machine can read a command line: a
secret in it is warned about, as is a file with secrets that others may read.

### Strictness

Errors stop the start, all of them listed at once, with exit code 2. Warnings do not, unless `mld.strict = true`.

### What is shown of a value

`mld check` and the log show the part of a value that its key declares harmless, and `***` in place of the rest:

- names, numbers, words of a closed set and ARNs: in full
- endpoints and proxies: scheme, host and port; paths and other URLs: without user, password and parameters
- `executableName`: the program, a script or Python module, and the names of flags
- tags: their names
- `mld.spark.conf.*` and `mld.spark.sink.*.options.*`: nothing, unless the key is known to be harmless
  (`properties/harmless.py`), and then like a path; of Java options sizes, switches and names of properties
- a key whose name speaks of a password, secret, token or key, and a key without effect: nothing

A value of the wrong kind is not repeated, because it may have been meant for another line: the message names
file and line. Names of unknown keys are repeated, their values never.
"""

_CREDENTIALS = """\
## Credentials

```
AwsCredentialsProvider = provider, provider, …         provider = name|argument|…
```

When the daemon starts it asks the providers in this order. It uses the first that yields credentials, and renews
them as needed; if the provider goes away, it uses the last keys until they expire. If none yields any, the
daemon says why each failed, and stops.

| Provider | Arguments | Credentials |
|---|---|---|
| `DefaultCredentialsProvider` | | the usual chain: environment, web identity, profile, container, instance |
| `EnvironmentVariableCredentialsProvider` | | `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN` |
| `ProfileCredentialsProvider` | profile (default: `AWS_PROFILE`, then `default`) | a profile of the shared files, \
also with assume-role, SSO or credential_process |
| `InstanceProfileCredentialsProvider` | | the EC2 instance |
| `ContainerCredentialsProvider` | | ECS, EKS Pod Identity |
| `WebIdentityTokenFileCredentialsProvider` | | `AWS_WEB_IDENTITY_TOKEN_FILE`, `AWS_ROLE_ARN` |
| `StsAssumeRoleCredentialsProvider` | role ARN, session name, then the arguments below | a role, assumed with \
credentials of the default chain |
| `AnonymousCredentialsProvider` | | none: requests are not signed |
| `SystemPropertyCredentialsProvider` | | never any: there is no Java here |
| `package.module:callable` | given to the callable as texts | your own, see below |

Full class names, `KclStsAssumeRoleCredentialsProvider` and the names of the SDK v1 (with a warning) are
understood as well.

An assumed role takes `externalId=<text>`, `endpointRegion=<region of STS>` and `endpoint=<URL or host>^<signing
region>`. Without a region of its own, STS uses `AWS_REGION`, the region of the profile, then `regionName`.

```properties
AwsCredentialsProvider = StsAssumeRoleCredentialsProvider|arn:aws:iam::123456789012:role/reader|kcl|\
externalId=${EXTERNAL_ID}
AwsCredentialsProviderDynamoDB = ProfileCredentialsProvider|leases, DefaultCredentialsProvider
```

`package.module:callable` names a Python function (its directory must be in `PYTHONPATH`). It returns a mapping
or an object with `access_key`, `secret_key`, and optionally `token` and `expiry` (a datetime, or ISO 8601 text,
with a time zone); with an expiry it is called again before that time.

What is hidden of these values: external ids, arguments of your own providers, users and paths of endpoints, and
whatever an environment variable supplied.
"""

_DEVIATIONS = """\
## Differences from Java

| Subject | Java KCL 3.x | This daemon |
|---|---|---|
| Blanks around a value | kept; part of names, or an error | removed |
| Text that is no number or boolean | taken as 0 or false | an error |
| Value out of range | mostly unnoticed | an error |
| 0 for a number without a meaning for 0 | not set | not set, with a warning |
| Unknown, misspelled or old key | ignored silently | ignored with a warning and the nearest key |
| `cleanupLeasesUponShardCompletion=false` | ignored | honoured |
| `shutdownGraceMillis` | default 0: no graceful stop | default 25000 |
| `logWarningForTaskAfterMillis` | off; each second; a silent stream too | 60000; doubling; children only |
| `timeoutInSeconds` of 0 or less | ends the daemon at the first child | an error |
| `workerId` empty | accepted | an error |
| Both initial positions, or two spellings of one key | order of a hash table | fixed, with a warning |
| Epoch milliseconds as initial position | a date in the far future | an error |
| Region of `streamArn` | never used | used if there is no `regionName`; a conflict is warned about |
| Region of the environment | `AWS_REGION` | `AWS_REGION`, `AWS_DEFAULT_REGION` |
| Unusable credentials provider | skipped silently | named, with the reason |
| Encoding | ISO-8859-1 | UTF-8 where the bytes are UTF-8 |
"""


def render() -> str:
    """The whole page."""
    parts = [_INTRODUCTION, _CREDENTIALS, "## Keys\n\n" + _KEYS_INTRODUCTION]
    parts += [_table(section) for section in Section]
    parts.append(_DEVIATIONS)
    return "\n".join(parts)


_KEYS_INTRODUCTION = """\
Times ending in `Millis` are milliseconds. *Not yet* marks keys that are checked but whose feature this version
does not have; *not supported* keys on which only Java acts; *no effect* keys that neither daemon uses.
"""


def _table(section: Section) -> str:
    """A section's heading, what its keys have in common, and a row for each key."""
    keys = [key for key in ALL_KEYS if key.section is section]
    common = keys[0].note if len({key.note for key in keys}) == 1 else ""
    prefix = _common_prefix(keys)
    sentences = [common] if common else []
    if prefix:
        sentences.append(f"Each key may also be written with the prefix `{prefix}`.")
    heading = f"### {section.value}\n\n" + (" ".join(sentences) + "\n\n" if sentences else "")
    rows = ["| Key | Type | Default | Meaning | Remarks |", "|---|---|---|---|---|"]
    rows += [_row(key, known_note=common, known_prefix=prefix) for key in keys]
    return heading + "\n".join(rows) + "\n"


def _common_prefix(keys: list[Key]) -> str:
    """The prefix that makes every key's one alias out of its name; empty if there is none."""
    prefixes = {key.aliases[0].removesuffix(key.name) if len(key.aliases) == 1 else "" for key in keys}
    return prefixes.pop() if len(prefixes) == 1 else ""


def _row(key: Key, *, known_note: str, known_prefix: str) -> str:
    remarks = " ".join(_remarks(key, known_note=known_note, known_prefix=known_prefix))
    cells = (f"`{key.name}`", _type(key), _default(key), key.meaning, remarks)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _type(key: Key) -> str:
    if key.choices is not None:
        return ", ".join(f"`{choice.value}`" for choice in key.choices)
    return key.kind.value


def _default(key: Key) -> str:
    if key.kind is ValueKind.DOUBLE and isinstance(key.default, float) and key.default > _NO_LIMIT:
        return "no limit"
    return default_text(key) or "empty"


def _remarks(key: Key, *, known_note: str, known_prefix: str) -> Iterator[str]:
    match key.effect:
        case Effect.LATER:
            yield "*Not yet.*"
        case Effect.UNSUPPORTED:
            yield "*Not supported.*"
        case Effect.NONE:
            yield "*No effect.*"
    if key.aliases and not known_prefix:
        yield f"Also {', '.join(f'`{alias}`' for alias in key.aliases)}."
    bounds = range_text(key)
    if bounds:
        yield f"{bounds[0].upper()}{bounds[1:]}."
    if key.note and not known_note:
        yield key.note


if __name__ == "__main__":
    sys.stdout.write(render())
