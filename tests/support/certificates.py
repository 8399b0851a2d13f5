"""Creates a certificate authority for one test, and certificates for its servers' names."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_PEM = serialization.Encoding.PEM


class Authority:
    """Signs certificates. `bundle` is the file with the authority's certificate, which clients have to trust."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._contexts = folder, dict[str, ssl.SSLContext]()
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "the test's own authority")])
        self.bundle = folder / "authority.pem"
        own = self._signed(self._name, self._key, x509.BasicConstraints(ca=True, path_length=0))
        self.bundle.write_bytes(own.public_bytes(_PEM))

    def context(self, host: str) -> ssl.SSLContext:
        """Return the context of a server that appears as `host`, a name or an address; one asterisk stands for one
        label.
        """
        if host not in self._contexts:
            key = ec.generate_private_key(ec.SECP256R1())
            try:
                name: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
            except ValueError:
                name = x509.DNSName(host)
            subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a server")])
            certificate = self._signed(subject, key, x509.SubjectAlternativeName([name]))
            self._contexts[host] = self._served(host.replace("*", "_"), key, certificate)
        return self._contexts[host]

    def alone(self, host: str) -> ssl.SSLContext:
        """Return the context of a server that presents the authority's own, self-signed certificate, and make it the
        `bundle`.
        """
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))])
        own = self._signed(self._name, self._key, x509.BasicConstraints(ca=True, path_length=0), names)
        self.bundle.write_bytes(own.public_bytes(_PEM))
        return self._served("alone", self._key, own)

    def _served(self, name: str, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> ssl.SSLContext:
        file = self._folder / f"{name}.pem"
        private = key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        file.write_bytes(private + certificate.public_bytes(_PEM))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context

    def _signed(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *extensions: x509.ExtensionType
    ) -> x509.Certificate:
        now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
        builder = x509.CertificateBuilder(self._name, subject, key.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(now - day).not_valid_after(now + day)
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        return builder.sign(self._key, hashes.SHA256())
