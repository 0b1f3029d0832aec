//! Which certificates are trusted, and which is shown.

use super::{HttpConfig, HttpError};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_name;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};
use std::sync::Arc;

/// TLS 1.2 and 1.3, HTTP/2 and HTTP/1.1 offered, the system's certificates and the extra ones trusted.
pub(super) fn tls(config: &HttpConfig, client_certificate: Option<&[u8]>) -> Result<rustls::ClientConfig, HttpError> {
    let failed = |what: &str, cause: Box<dyn std::error::Error + Send + Sync>| HttpError::Config {
        what: what.to_owned(),
        cause: Some(cause),
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|cause| failed("no TLS version is available", cause.into()))?;
    let (mut roots, errors) = system_roots();
    for error in errors {
        tracing::warn!(%error, "a system certificate cannot be used");
    }
    let builder = match &config.ca_bundle {
        None => builder.with_root_certificates(roots),
        Some(pem) => {
            let what = "the file of ca= is not PEM with certificates in it";
            let named = certificates(pem, what)?;
            for certificate in &named {
                roots.add(certificate.clone()).map_err(|cause| failed(what, cause.into()))?;
            }
            let inner = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
                .build()
                .map_err(|cause| failed(what, cause.into()))?;
            builder.dangerous().with_custom_certificate_verifier(Arc::new(NamedHostVerifier { inner, named }))
        }
    };
    let mut tls = match client_certificate {
        None => builder.with_no_client_auth(),
        Some(pem) => {
            let what = "the file of cert= is not PEM with a certificate and its key";
            let key = PrivateKeyDer::from_pem_slice(pem).map_err(|cause| failed(what, cause.into()))?;
            builder.with_client_auth_cert(certificates(pem, what)?, key).map_err(|cause| failed(what, cause.into()))?
        }
    };
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(tls)
}

/// The certificate authorities that the system trusts, and why others cannot be read.
pub fn system_roots() -> (rustls::RootCertStore, Vec<rustls_native_certs::Error>) {
    let native = rustls_native_certs::load_native_certs();
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(native.certs);
    (roots, native.errors)
}

/// The certificates of a PEM file, at least one; `what` is the error's text.
fn certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>, HttpError> {
    let failed = |cause| HttpError::Config { what: what.to_owned(), cause };
    let certificates = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|cause| failed(Some(cause.into())))?;
    if certificates.is_empty() { Err(failed(None)) } else { Ok(certificates) }
}

/// Trusts a server's certificate also where it is itself one of those named: `openssl req -x509` makes certificates of an
/// authority, which no other rule lets a server show.
#[derive(Debug)]
struct NamedHostVerifier {
    inner: Arc<WebPkiServerVerifier>,
    named: Vec<CertificateDer<'static>>,
}

impl NamedHostVerifier {
    /// Returns whether nothing but its issuer or its being an authority's was wrong with a certificate. Its dates are checked before both.
    fn is_of_issuer_alone(error: &Error) -> bool {
        match error {
            Error::InvalidCertificate(CertificateError::UnknownIssuer) => true,
            Error::InvalidCertificate(CertificateError::Other(other)) => {
                matches!(other.0.downcast_ref(), Some(webpki::Error::CaUsedAsEndEntity))
            }
            _ => false,
        }
    }
}

impl ServerCertVerifier for NamedHostVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self.inner.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        let is_named = || self.named.iter().any(|named| **named == **end_entity);
        match verified {
            Err(error) if NamedHostVerifier::is_of_issuer_alone(&error) && is_named() => {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
