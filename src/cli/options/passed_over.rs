//! Options of mount(8) that every filesystem meets and that change nothing here, and those that cannot be.

/// What means nothing here, is so anyway, or is for mount(8), systemd and the like alone. `suid` and `dev` allow what the modes
/// of this tree, 0444 and 0555, never ask for; `sync` and its like are about writing.
const PASSED_OVER: &[&str] = &[
    "ro",
    "nosuid",
    "nodev",
    "suid",
    "dev",
    "defaults",
    "_netdev",
    "_rnetdev",
    "nofail",
    "fail",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "nousers",
    "owner",
    "noowner",
    "group",
    "nogroup",
    "helper",
    "uhelper",
    "comment",
    "atime",
    "noatime",
    "diratime",
    "nodiratime",
    "relatime",
    "norelatime",
    "strictatime",
    "nostrictatime",
    "lazytime",
    "nolazytime",
    "async",
    "sync",
    "dirsync",
    "iversion",
    "noiversion",
    "mand",
    "nomand",
    "silent",
    "loud",
    "quiet",
    "nosymfollow",
    "symfollow",
    "acl",
    "noacl",
    "user_xattr",
    "context",
    "fscontext",
    "defcontext",
    "rootcontext",
    "seclabel",
    "smackfsdef",
    "smackfsroot",
    "smackfshat",
    "smackfsfloor",
    "smackfstransmute",
    "nonempty",
    "default_permissions",
];

/// Whether `name` means nothing here.
pub fn is_passed_over(name: &str) -> bool {
    PASSED_OVER.contains(&name) || name.starts_with("x-") || name.starts_with("X-")
}

/// Whether mount(8) writes `name` in front of the options by itself.
pub fn is_vfs_default(name: &str) -> bool {
    name == "rw"
}

/// Why an option that other filesystems have cannot be had here.
pub fn refusal(name: &str) -> Option<&'static str> {
    match name {
        "rw" => Some("a Source can only be read: the mount is always read-only"),
        "remount" => Some("the options of a mount do not change while it runs; unmount it and mount it again"),
        _ => secret_place(name),
    }
}

/// Where a secret belongs that somebody wants to write where others see it.
pub fn secret_place(name: &str) -> Option<&'static str> {
    match name.replace('_', "-").as_str() {
        "bearer" | "token" | "bearer-token" | "secret" => Some(
            "a secret does not belong where others can read it; put it into a file (chmod 600) and name that: bearer-file",
        ),
        "header" | "headers" | "authorization" | "cookie" | "api-key" => Some(
            "a secret does not belong where others can read it; put it into a file (chmod 600) and name that: header-file",
        ),
        "password" | "passwd" | "pass" | "username" | "login" | "credentials" => Some(
            "a secret does not belong where others can read it; put it into a file (chmod 600) and name that: netrc",
        ),
        "key" | "private-key" | "passphrase" => Some(
            "a secret does not belong where others can read it; put key and certificate into a file (chmod 600) and name that: cert",
        ),
        _ => None,
    }
}
