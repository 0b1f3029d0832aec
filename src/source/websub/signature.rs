//! `X-Hub-Signature`: whether the sender of a delivery knows the secret (WebSub, section 7.1).

use crate::document::hash::from_hex;
use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;
use sha2::{Sha256, Sha384, Sha512};

/// Returns whether `field` (`METHOD=HEX`) is the HMAC of `body` under `secret`, by one of the methods of WebSub: sha1, sha256, sha384,
/// sha512. The comparison takes the same time wherever the two differ.
pub(super) fn is_genuine(field: Option<&str>, secret: &str, body: &[u8]) -> bool {
    let Some((method, digits)) = field.and_then(|field| field.trim().split_once('=')) else { return false };
    let Some(claimed) = from_hex(digits.trim().as_bytes()) else { return false };
    match method.to_ascii_lowercase().as_str() {
        "sha1" => agrees::<Hmac<Sha1>>(secret, body, &claimed),
        "sha256" => agrees::<Hmac<Sha256>>(secret, body, &claimed),
        "sha384" => agrees::<Hmac<Sha384>>(secret, body, &claimed),
        "sha512" => agrees::<Hmac<Sha512>>(secret, body, &claimed),
        _ => false,
    }
}

fn agrees<M: Mac + KeyInit>(secret: &str, body: &[u8], claimed: &[u8]) -> bool {
    // HMAC takes keys of any length.
    let Ok(mut mac) = <M as KeyInit>::new_from_slice(secret.as_bytes()) else { return false };
    mac.update(body);
    mac.verify_slice(claimed).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &[u8] = b"what do ya want for nothing?";
    const SECRET: &str = "Jefe";

    /// RFC 2202 (test case 2) and RFC 4231 (test case 2).
    const SIGNATURES: [&str; 4] = [
        "sha1=effcdf6ae5eb2fa2d27416d5f184df9c259a7c79",
        "sha256=5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
        "sha384=af45d2e376484031617f78d2b58a6b1b9c7ef464f5a01b47e42ec3736322445e8e2240ca5e69e2c78b3239ecfab21649",
        "sha512=164b7a7bfcf819e2e395fbe73b56e0a387bd64222e831fd610270cd7ea2505549758bf75c05a994a6d034f65f8f0e6fdcaeab1a34d4a6b4b636e070a38bce737",
    ];

    #[test]
    fn every_method_of_websub_is_understood_in_either_case() {
        for signature in SIGNATURES {
            assert!(is_genuine(Some(signature), SECRET, BODY), "{signature}");
            let (method, digits) = signature.split_once('=').unwrap();
            let upper = format!("{}={}", method.to_ascii_uppercase(), digits.to_ascii_uppercase());
            assert!(is_genuine(Some(&upper), SECRET, BODY), "{upper}");
        }
    }

    #[test]
    fn another_body_secret_or_digit_is_a_forgery() {
        for signature in SIGNATURES {
            assert!(!is_genuine(Some(signature), SECRET, b"what do ya want for nothing!"), "{signature}");
            assert!(!is_genuine(Some(signature), "jefe", BODY), "{signature}");
            let mut changed = signature.to_owned();
            let last = changed.pop().unwrap();
            changed.push(if last == '0' { '1' } else { '0' });
            assert!(!is_genuine(Some(&changed), SECRET, BODY), "{changed}");
        }
    }

    #[test]
    fn what_is_missing_cut_or_of_an_unknown_method_is_a_forgery() {
        assert!(!is_genuine(None, SECRET, BODY));
        let cut = &SIGNATURES[0][..SIGNATURES[0].len() - 2];
        let swapped = SIGNATURES[0].replace("sha1", "sha256");
        for field in
            ["", "sha1", "sha1=", "=", "sha1=xyz", "sha1=0", "md5=750c783e6ab0b503eaa86e310a5db738", cut, &swapped]
        {
            assert!(!is_genuine(Some(field), SECRET, BODY), "{field}");
        }
    }
}
