//! Why a connection failed, in plain words, from the errors of the libraries below.

use rustls::{AlertDescription, CertificateError};
use std::error::Error;
use std::io::ErrorKind;

/// Why a connection could not be made or was cut.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct ConnectionError(Box<str>);

impl From<&reqwest::Error> for ConnectionError {
    fn from(error: &reqwest::Error) -> ConnectionError {
        let io = find::<std::io::Error>(error);
        let text = match io.map(std::io::Error::kind) {
            _ if error.is_timeout() => "no answer in time".to_owned(),
            Some(ErrorKind::ConnectionRefused) => "connection refused: no server listens on this port".to_owned(),
            Some(ErrorKind::ConnectionReset) => "the connection was reset".to_owned(),
            Some(ErrorKind::TimedOut) => "no answer in time".to_owned(),
            Some(ErrorKind::UnexpectedEof) => "the connection was closed".to_owned(),
            _ => innermost(error),
        };
        ConnectionError(text.into())
    }
}

/// The text of the last cause, which is the system's or the server's own.
fn innermost(error: &(dyn Error + 'static)) -> String {
    let mut last = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    let text = last.to_string();
    match text.strip_prefix("failed to lookup address information: ") {
        Some(reason) => reason.to_owned(),
        None if text == "tls handshake eof" => {
            "the server closed the connection instead of speaking TLS; is it an http:// address?".to_owned()
        }
        None => text,
    }
}

/// Why there is no TLS connection.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct TlsError(Box<str>);

impl From<&rustls::Error> for TlsError {
    fn from(error: &rustls::Error) -> TlsError {
        use rustls::Error::{AlertReceived, InvalidCertificate, InvalidMessage, PeerIncompatible};
        let text = match error {
            InvalidMessage(_) => "the server does not speak TLS on this port; is it an http:// address?".to_owned(),
            PeerIncompatible(_) | AlertReceived(AlertDescription::ProtocolVersion) => {
                "the server offers no TLS version or cipher that is accepted here".to_owned()
            }
            AlertReceived(AlertDescription::CertificateRequired) => {
                "the server requires a client certificate: -o cert=FILE".to_owned()
            }
            AlertReceived(alert) => format!("the server refuses the connection (TLS alert {alert:?})"),
            InvalidCertificate(fault) => certificate_fault(fault),
            other => other.to_string(),
        };
        TlsError(text.into())
    }
}

fn certificate_fault(fault: &CertificateError) -> String {
    let fault = match fault {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "has expired",
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "is not valid yet; is the clock of this machine right?"
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "belongs to another host name"
        }
        CertificateError::UnknownIssuer => {
            "is signed by an authority that this machine does not trust; to trust it: -o ca=FILE"
        }
        CertificateError::Revoked => "has been revoked",
        other => return format!("the server's certificate cannot be verified: {other}"),
    };
    format!("the server's certificate {fault}")
}

/// The first `E` among an error and its causes, those wrapped by an I/O error included.
pub(super) fn find<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a E> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<E>() {
            return Some(found);
        }
        // `source` of an I/O error is the source of what it wraps, not the wrapped error itself.
        next = match error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
            Some(wrapped) => Some(wrapped),
            None => error.source(),
        };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::InvalidMessage;

    #[test]
    fn a_tls_failure_names_the_fault_in_plain_words() {
        let text = |error: rustls::Error| TlsError::from(&error).to_string();

        let faults = [
            (rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType), "does not speak TLS"),
            (rustls::Error::InvalidCertificate(CertificateError::Expired), "certificate has expired"),
            (rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer), "-o ca=FILE"),
            (rustls::Error::InvalidCertificate(CertificateError::NotValidForName), "another host name"),
            (rustls::Error::AlertReceived(AlertDescription::CertificateRequired), "-o cert=FILE"),
        ];
        for (error, expected) in faults {
            let shown = text(error);
            assert!(shown.contains(expected), "{shown}");
        }
    }
}
