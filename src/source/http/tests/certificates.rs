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

/// An authority's certificate for 127.0.0.1 as `openssl req -x509` makes it, the same of 2020, and their key.
pub(super) const SELF_SIGNED: &str = "\
-----BEGIN CERTIFICATE-----
MIIBhTCCASygAwIBAgIULUk4TrLMAkNwS+da27/PZsh2ceAwCgYIKoZIzj0EAwIw
DzENMAsGA1UEAwwEc2VsZjAgFw0yNjExMjYwMzU1MTZaGA8yMTI2MTEwMjAzNTUx
NlowDzENMAsGA1UEAwwEc2VsZjBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABEQx
ml2PitS2plhLGMAyqwI08tuoZfH3KSEdnLnInl11i4KAa1VJGObRtM3/8fBn+6O6
ghjBoFx+Bux4/L8xBg2jZDBiMB0GA1UdDgQWBBRHuHQkFuCGRD2zBEKfq8r1Mf3h
gzAfBgNVHSMEGDAWgBRHuHQkFuCGRD2zBEKfq8r1Mf3hgzAPBgNVHRMBAf8EBTAD
AQH/MA8GA1UdEQQIMAaHBH8AAAEwCgYIKoZIzj0EAwIDRwAwRAIgQGGsYYJo0B0q
8zcQCvzGxDpjsvf3F7yXl3+ba+EUgjgCICubyn+jJ4yOZCM/p7BL7wpYiSTp5b0m
rJkC0O2FpCLT
-----END CERTIFICATE-----
";
pub(super) const SELF_SIGNED_LONG_AGO: &str = "\
-----BEGIN CERTIFICATE-----
MIIBTzCB9qADAgECAgEBMAoGCCqGSM49BAMCMA8xDTALBgNVBAMMBHNlbGYwHhcN
MjAwMTAxMDAwMDAwWhcNMjEwMTAxMDAwMDAwWjAPMQ0wCwYDVQQDDARzZWxmMFkw
EwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAERDGaXY+K1LamWEsYwDKrAjTy26hl8fcp
IR2cucieXXWLgoBrVUkY5tG0zf/x8Gf7o7qCGMGgXH4G7Hj8vzEGDaNDMEEwDwYD
VR0TAQH/BAUwAwEB/zAPBgNVHREECDAGhwR/AAABMB0GA1UdDgQWBBRHuHQkFuCG
RD2zBEKfq8r1Mf3hgzAKBggqhkjOPQQDAgNIADBFAiAfPn9EYYO/Nx8ZRzwsQQl3
Yjd62Xkjs+ZFE1Dsdb+fWgIhAOuWKCEy6+LaGhf7CY6N5ZVtgsilTExQtRWD1TKC
4yI+
-----END CERTIFICATE-----
";
const SELF_KEY: &str = "\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgv4F1dOLutqcTZjMa
gQJ8SZmvxQVGwIME21L9dWH3zZOhRANCAAREMZpdj4rUtqZYSxjAMqsCNPLbqGXx
9ykhHZy5yJ5ddYuCgGtVSRjm0bTN//HwZ/ujuoIYwaBcfgbsePy/MQYN
-----END PRIVATE KEY-----
";

/// The settings of a server that shows `certificate`, one of the two above.
pub(super) fn self_signed_config(certificate: &str) -> Arc<rustls::ServerConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(SELF_KEY.as_bytes()).unwrap();
    Arc::new(builder.with_no_client_auth().with_single_cert(vec![certificate], key).unwrap())
}

/// A server's settings; where `with_client`, clients without a certificate of the CA are refused.
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
