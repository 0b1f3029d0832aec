//! TLS on loopback: a private CA, and certificates for 127.0.0.1 and for a client, good until 2126. The keys protect
//! nothing.

use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use rustls::server::WebPkiClientVerifier;
use std::sync::Arc;

pub(super) const CA: &str = "\
-----BEGIN CERTIFICATE-----
MIIBizCCATGgAwIBAgIUGmYTBNu1w6Qy4LMNEVvnX6WGB+YwCgYIKoZIzj0EAwIw
EjEQMA4GA1UEAwwHVGVzdCBDQTAgFw0yNjExMjEwMTQ1MzlaGA8yMTI2MTAyODAx
NDUzOVowEjEQMA4GA1UEAwwHVGVzdCBDQTBZMBMGByqGSM49AgEGCCqGSM49AwEH
A0IABGlPsP93g+2Y0C20sp7qOFknG57349qaLUghQltNpcMwI5q0EVHK2QkSeP+K
yFXjK1U5bffxIFykYS5G/jJO/tWjYzBhMB0GA1UdDgQWBBQgKnHKeQiICcUcxIYN
2pb9zHodATAfBgNVHSMEGDAWgBQgKnHKeQiICcUcxIYN2pb9zHodATAPBgNVHRMB
Af8EBTADAQH/MA4GA1UdDwEB/wQEAwICBDAKBggqhkjOPQQDAgNIADBFAiBQWq96
wqi++Is5upa0sMe3O0xY/2Oj4KTTUpC/I4dCPwIhANCG3AUi3yMJMKoIOHQJ1Hh+
KNYxk41zwniZnwNBDEnr
-----END CERTIFICATE-----
";

/// Certificate and key.
const SERVER: &str = "\
-----BEGIN CERTIFICATE-----
MIIBmTCCAUCgAwIBAgIUdTYuaERp9C/FeXy/TpfDKIdE5c4wCgYIKoZIzj0EAwIw
EjEQMA4GA1UEAwwHVGVzdCBDQTAgFw0yNjExMjEwMTQ1MzlaGA8yMTI2MTAyODAx
NDUzOVowETEPMA0GA1UEAwwGc2VydmVyMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcD
QgAEf+9b/4+wRmO3nlAlIbanMKXlhno0aw6GVIBnsH88JHwxPsifMaNNFqEOgMHW
h1FpExCF/VjE7Ftw9+/kHAvwj6NzMHEwDwYDVR0RBAgwBocEfwAAATATBgNVHSUE
DDAKBggrBgEFBQcDATAJBgNVHRMEAjAAMB0GA1UdDgQWBBSIkpBmHeQ3kUz2sf4t
5TvFeP4GODAfBgNVHSMEGDAWgBQgKnHKeQiICcUcxIYN2pb9zHodATAKBggqhkjO
PQQDAgNHADBEAiAVSckOz5YVbAfAhNJVkWcXVVd/SOZUQBEE3CBvZe1f4AIgdxoJ
GOoXq2kTj8+jkfdEdNLXgO83vXAyaNxoLwGs7dY=
-----END CERTIFICATE-----
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQguJ3z0RV6QfgequN3
2TVogwtKynFtW/mhFIuGWkCldMmhRANCAAR/71v/j7BGY7eeUCUhtqcwpeWGejRr
DoZUgGewfzwkfDE+yJ8xo00WoQ6AwdaHUWkTEIX9WMTsW3D37+QcC/CP
-----END PRIVATE KEY-----
";

/// Certificate and key.
pub(super) const CLIENT: &str = "\
-----BEGIN CERTIFICATE-----
MIIBnDCCAUKgAwIBAgIUdTYuaERp9C/FeXy/TpfDKIdE5c8wCgYIKoZIzj0EAwIw
EjEQMA4GA1UEAwwHVGVzdCBDQTAgFw0yNjExMjEwMTQ1MzlaGA8yMTI2MTAyODAx
NDUzOVowETEPMA0GA1UEAwwGY2xpZW50MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcD
QgAEzvsW/ziMV3Z7vhGmsLL8ZWnfMvoGlDk1ajMQY2vCd3uNFGtPf5tiCabLJYET
T+StPSiIDPBMeOD6zdRyQlaT2aN1MHMwEwYDVR0lBAwwCgYIKwYBBQUHAwIwEQYD
VR0RBAowCIIGY2xpZW50MAkGA1UdEwQCMAAwHQYDVR0OBBYEFIYUBpAt7koG8arl
USGWMFq/vDmEMB8GA1UdIwQYMBaAFCAqccp5CIgJxRzEhg3alv3Meh0BMAoGCCqG
SM49BAMCA0gAMEUCIQCHkoKITK7HBtDQu5+PksNQiL4rtHesA79IdN0fubtlywIg
RlmcD3qfBvj6GiOdB+cFOWgspwiZ8kfV3irnaKaAq5g=
-----END CERTIFICATE-----
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgLI51/aB2kfd7mgNF
jHcteCgU1KhbyQVKGNz7Ibii7LuhRANCAATO+xb/OIxXdnu+Eaawsvxlad8y+gaU
OTVqMxBja8J3e40Ua09/m2IJpsslgRNP5K09KIgM8Ex44PrN1HJCVpPZ
-----END PRIVATE KEY-----
";

/// A server's settings; where `with_client`, whoever comes without a certificate of the CA is sent away.
pub(super) fn server_config(with_client: bool) -> Arc<rustls::ServerConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let builder = if with_client {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(CA.as_bytes()).unwrap()).unwrap();
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
        builder.with_client_cert_verifier(verifier)
    } else {
        builder.with_no_client_auth()
    };
    let certificate = CertificateDer::from_pem_slice(SERVER.as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(SERVER.as_bytes()).unwrap();
    Arc::new(builder.with_single_cert(vec![certificate], key).unwrap())
}
