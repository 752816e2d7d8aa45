"""Fleet stories as text: commands in virtual time with recorded output. See README.md here."""
