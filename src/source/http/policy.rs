//! Which hosts and addresses may be reached.
//!
//! A Source on the public net must not be able to send us to machines that only we can reach. Every Source may name
//! public addresses. The Source's own `HOST:PORT` and `allow-host=` are reachable at every address, link-local
//! addresses and the metadata services of clouds never. A URI's literal address is checked before anything is sent,
//! each address of a name when it is connected to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use url::{Host, Url};

/// A host or address that may not be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressRefusal {
    /// The host as the URI names it.
    pub host: Box<str>,
    /// The address; `None` where the name alone is refused.
    pub address: Option<IpAddr>,
    /// True if `allow-host=` could allow it.
    pub allowable: bool,
}

impl std::fmt::Display for AddressRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let AddressRefusal { host, address, allowable } = self;
        match address {
            Some(address) if address.to_string() != host.trim_matches(['[', ']']) => {
                write!(f, "{host} is {address}, ")?
            }
            _ => write!(f, "{host} is ")?,
        }
        if *allowable {
            write!(f, "not a public address; if that is meant, mount with -o allow-host={host}")
        } else {
            f.write_str("a link-local address or a cloud's metadata service, which is never reached")
        }
    }
}

impl std::error::Error for AddressRefusal {}

/// Which addresses a connection may be made to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// Public ones.
    Public,
    /// All but those that are never reached.
    Trusted,
}

/// Kind of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AddressKind {
    Public,
    /// Private, loopback, reserved, multicast: someone must have allowed it.
    Private,
    /// Link-local or a metadata service.
    Never,
}

impl Reach {
    /// Returns whether a connection of this reach may go to `address`.
    pub(super) fn check(self, host: &str, address: IpAddr) -> Result<(), AddressRefusal> {
        let kind = kind(address);
        match (kind, self) {
            (AddressKind::Public, _) | (AddressKind::Private, Reach::Trusted) => Ok(()),
            _ => {
                let allowable = kind == AddressKind::Private;
                Err(AddressRefusal { host: host.into(), address: Some(address), allowable })
            }
        }
    }
}

/// `HOST` or `HOST:PORT` in the form that URLs have: lower case, IPv6 in brackets, numbers as addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Authority {
    host: Box<str>,
    port: Option<u16>,
}

impl Authority {
    /// Reads `HOST[:PORT]`, an IPv6 address with or without brackets; `None` where it is none.
    pub(super) fn parse(raw: &str) -> Option<Authority> {
        if let Ok(address) = raw.parse::<Ipv6Addr>() {
            return Some(Authority { host: format!("[{address}]").into(), port: None });
        }
        let url = Url::parse(&format!("http://{raw}/")).ok()?;
        // `Url` drops port 80 as http's own; here it is written.
        let port = url.port().or_else(|| raw.ends_with(":80").then_some(80));
        (url.path() == "/" && url.username().is_empty())
            .then(|| url.host_str().map(|host| Authority { host: without_dot(host).into(), port }))?
    }

    /// The host, IPv6 addresses in brackets.
    pub(super) fn host(&self) -> &str {
        &self.host
    }

    /// Returns whether `url` has this authority; without a port: on the default port of its scheme.
    fn is_own_of(&self, url: &Url) -> bool {
        let port = self.port.or_else(|| match url.scheme() {
            "https" => Some(443),
            _ => Some(80),
        });
        self.names(url) && url.port_or_known_default() == port
    }

    /// Returns whether `url` has this authority; without a port: on any port.
    fn allows(&self, url: &Url) -> bool {
        self.names(url) && self.port.is_none_or(|port| url.port_or_known_default() == Some(port))
    }

    fn names(&self, url: &Url) -> bool {
        url.host_str().is_some_and(|host| without_dot(host) == &*self.host)
    }
}

fn without_dot(host: &str) -> &str {
    host.strip_suffix('.').unwrap_or(host)
}

/// Decides for URLs; what a name resolves to is decided by the [`Reach`] it hands out.
#[derive(Clone, Debug)]
pub(super) struct AddressPolicy {
    own: Vec<Authority>,
    allowed: Vec<Authority>,
}

impl AddressPolicy {
    pub(super) fn new(own: Option<Authority>, allowed: Vec<Authority>) -> AddressPolicy {
        AddressPolicy { own: own.into_iter().collect(), allowed }
    }

    /// Rules with one more host that is the Source's own.
    pub(super) fn with_own(&self, own: Option<Authority>) -> AddressPolicy {
        let mut policy = self.clone();
        policy.own.extend(own.filter(|own| !self.own.contains(own)));
        policy
    }

    /// Returns whether `url` is at an own `HOST:PORT` of the Source.
    pub(super) fn is_own(&self, url: &Url) -> bool {
        self.own.iter().any(|own| own.is_own_of(url))
    }

    /// Which addresses the host of `url` may have. Names that can only mean this machine or network are refused as their addresses would be:
    /// behind a proxy those are not seen here.
    pub(super) fn admit(&self, url: &Url) -> Result<Reach, AddressRefusal> {
        self.reach(url, self.is_own(url) || self.allowed.iter().any(|allowed| allowed.allows(url)))
    }

    /// Admits a host that the person named: any but those that are never reached.
    pub(super) fn admit_named(&self, url: &Url) -> Result<Reach, AddressRefusal> {
        self.reach(url, true)
    }

    fn reach(&self, url: &Url, trusted: bool) -> Result<Reach, AddressRefusal> {
        let reach = if trusted { Reach::Trusted } else { Reach::Public };
        let text = url.host_str().unwrap_or_default();
        match url.host() {
            Some(Host::Ipv4(address)) => reach.check(text, address.into())?,
            Some(Host::Ipv6(address)) => reach.check(text, address.into())?,
            Some(Host::Domain(name)) => {
                let name = without_dot(name);
                if name == "metadata.google.internal" {
                    return Err(AddressRefusal { host: text.into(), address: None, allowable: false });
                }
                if !trusted && is_local_name(name) {
                    return Err(AddressRefusal { host: text.into(), address: None, allowable: true });
                }
            }
            None => return Err(AddressRefusal { host: text.into(), address: None, allowable: false }),
        }
        Ok(reach)
    }
}

/// Names that are never on the public net (RFC 6761, RFC 6762, RFC 9476 and ICANN's reservation of `internal`).
fn is_local_name(name: &str) -> bool {
    let top = name.rsplit('.').next().unwrap_or(name);
    matches!(top, "localhost" | "local" | "internal" | "localdomain")
        || name == "home.arpa"
        || name.ends_with(".home.arpa")
}

/// Services that hand out a machine's credentials, at addresses that are not link-local.
const METADATA_V4: [Ipv4Addr; 3] =
    [Ipv4Addr::new(100, 100, 100, 200), Ipv4Addr::new(168, 63, 129, 16), Ipv4Addr::new(192, 0, 0, 192)];
/// Metadata service over IPv6.
const METADATA_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);

/// Returns whether `address` may be reached by any name.
pub(super) fn is_public(address: IpAddr) -> bool {
    kind(address) == AddressKind::Public
}

fn kind(address: IpAddr) -> AddressKind {
    match address {
        IpAddr::V4(address) => kind_v4(address),
        IpAddr::V6(address) => kind_v6(address),
    }
}

fn kind_v4(address: Ipv4Addr) -> AddressKind {
    if address.is_link_local() || METADATA_V4.contains(&address) {
        return AddressKind::Never;
    }
    match address.octets() {
        [0 | 10 | 127, ..] // this network, private, loopback
        | [100, 64..=127, ..] // carrier-grade NAT
        | [172, 16..=31, ..]
        | [192, 0, 0 | 2, _] // protocol assignments, documentation
        | [192, 88, 99, _] // 6to4 relays
        | [192, 168, ..]
        | [198, 18 | 19, ..] // benchmarks
        | [198, 51, 100, _]
        | [203, 0, 113, _]
        | [224..=255, ..] => AddressKind::Private, // multicast, reserved, broadcast
        _ => AddressKind::Public,
    }
}

fn kind_v6(address: Ipv6Addr) -> AddressKind {
    if address.is_unicast_link_local() || address == METADATA_V6 {
        return AddressKind::Never;
    }
    let segments = address.segments();
    let embedded = |high: u16, low: u16| kind_v4(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)));
    match segments {
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => AddressKind::Private,
        // Written otherwise it is still the same IPv4 host: mapped, NAT64 (RFC 6052), 6to4 (RFC 3056).
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => {
            embedded(high, low)
        }
        // The deprecated IPv4-compatible form and local NAT64 (RFC 8215) are no one's public address.
        [0, 0, 0, 0, 0, 0, high, low] | [0x64, 0xff9b, 1, _, _, _, high, low] => match embedded(high, low) {
            AddressKind::Never => AddressKind::Never,
            _ => AddressKind::Private,
        },
        [0x2001, 0..=0x1ff, ..] // protocol assignments, Teredo among them
        | [0x2001, 0xdb8, ..] // documentation
        | [0x3fff, 0..=0xfff, ..] => AddressKind::Private,
        [0x2000..=0x3fff, ..] => AddressKind::Public,
        _ => AddressKind::Private,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(own: &str, allowed: &[&str]) -> AddressPolicy {
        AddressPolicy::new(Authority::parse(own), allowed.iter().map(|raw| Authority::parse(raw).unwrap()).collect())
    }

    fn admitted(policy: &AddressPolicy, url: &str) -> Result<Reach, AddressRefusal> {
        policy.admit(&Url::parse(url).unwrap())
    }

    #[test]
    fn every_kind_of_address() {
        let table = [
            (
                AddressKind::Public,
                "8.8.8.8 100.63.255.255 100.128.0.1 172.32.0.1 193.0.0.1 \
                 2606:4700::1111 ::ffff:8.8.8.8 64:ff9b::808:808 2002:808:808::1",
            ),
            (
                AddressKind::Private,
                "0.0.0.0 10.1.2.3 100.64.0.1 127.0.0.1 127.255.255.254 172.16.0.1 172.31.255.255 \
                 192.168.1.1 192.0.2.1 198.18.0.1 \
                 203.0.113.9 224.0.0.1 240.0.0.1 255.255.255.255 :: ::1 fc00::1 fdff::1 fec0::1 ff02::1 \
                 2001:db8::1 2001::1 3fff::1 \
                 ::ffff:127.0.0.1 ::ffff:10.0.0.1 64:ff9b::a00:1 64:ff9b:1::a00:1 2002:a00:1::1 ::7f00:1 ::808:808",
            ),
            (
                AddressKind::Never,
                "169.254.169.254 169.254.0.1 fe80::1 febf::1 ::ffff:169.254.169.254 64:ff9b::a9fe:a9fe \
                 2002:a9fe:a9fe::1 \
                 ::a9fe:a9fe fd00:ec2::254 100.100.100.200 168.63.129.16 192.0.0.192",
            ),
        ];
        for (expected, addresses) in table {
            for address in addresses.split_ascii_whitespace() {
                assert_eq!(kind(address.parse().unwrap()), expected, "{address}");
            }
        }
    }

    #[test]
    fn a_stranger_reaches_public_addresses_only() {
        let policy = policy("repo.example.org", &[]);
        assert_eq!(admitted(&policy, "http://8.8.8.8/"), Ok(Reach::Public));
        assert_eq!(admitted(&policy, "http://other.example.org/"), Ok(Reach::Public));
        // Every spelling that a browser understands as 127.0.0.1.
        for host in
            ["127.0.0.1", "2130706433", "0x7f.1", "0177.0.0.1", "127.1", "[::1]", "[::ffff:7f00:1]", "%31%32%37.0.0.1"]
        {
            let refusal = admitted(&policy, &format!("http://{host}/")).unwrap_err();
            assert!(refusal.allowable, "{host}");
            assert!(refusal.to_string().contains("-o allow-host="), "{refusal}");
        }
    }

    #[test]
    fn own_is_host_and_port() {
        let policy = policy("127.0.0.1:8080", &[]);
        assert_eq!(admitted(&policy, "http://127.0.0.1:8080/"), Ok(Reach::Trusted));
        assert!(admitted(&policy, "http://127.0.0.1:8081/").is_err());
        assert!(admitted(&policy, "http://127.0.0.1/").is_err());
    }

    #[test]
    fn own_without_port_is_each_schemes_own_port() {
        let policy = policy("Repo.Example.ORG", &[]);
        for url in ["http://repo.example.org/", "https://repo.example.org/", "http://repo.example.org.:80/"] {
            assert_eq!(admitted(&policy, url), Ok(Reach::Trusted), "{url}");
        }
        for url in ["http://repo.example.org:443/", "https://repo.example.org:8443/", "http://x.repo.example.org/"] {
            assert_eq!(admitted(&policy, url), Ok(Reach::Public), "{url}");
        }
    }

    #[test]
    fn allowed_hosts_are_allowed_on_every_port_unless_one_is_named() {
        let policy = policy("repo.example.org", &["127.0.0.1", "[::1]:8080", "fd00::1", "intranet"]);
        for url in [
            "http://127.0.0.1:1/",
            "https://127.0.0.1:2/",
            "http://[::1]:8080/",
            "http://[fd00::1]:9/",
            "http://intranet:3/",
        ] {
            assert_eq!(admitted(&policy, url), Ok(Reach::Trusted), "{url}");
        }
        assert!(admitted(&policy, "http://[::1]:8081/").is_err());
    }

    #[test]
    fn link_local_is_never_reached_not_even_as_own() {
        for host in ["169.254.169.254", "[fe80::1]", "metadata.google.internal", "metadata.google.internal."] {
            let policy = policy(host, &[host]);
            let refusal = admitted(&policy, &format!("http://{host}/")).unwrap_err();
            assert!(!refusal.allowable, "{host}");
            assert!(policy.admit_named(&Url::parse(&format!("http://{host}/")).unwrap()).is_err(), "{host}");
        }
        assert!(Reach::Trusted.check("own", "169.254.1.1".parse().unwrap()).is_err());
    }

    #[test]
    fn local_names_count_as_local_addresses() {
        let policy = policy("repo.local", &[]);
        let admit = |url: &str| policy.admit(&Url::parse(url).unwrap());
        assert!(admit("http://localhost/").is_err());
        assert!(admit("http://printer.local/").is_err() && admit("http://printer.local./").is_err());
        assert!(admit("http://10.0.0.1/").is_err());
        assert_eq!(admit("http://repo.local/"), Ok(Reach::Trusted));
        assert_eq!(admit("http://example.org/"), Ok(Reach::Public));
    }
}
