//! The resources of the demo: the papers of an invented harbour office.

use crate::document::Timestamp;
use sha2::{Digest, Sha256};

/// One resource as the demo's Source publishes it.
pub struct Resource {
    /// Path below the Source's root, percent-encoded, without leading slash.
    pub path: String,
    /// Media type.
    pub media_type: &'static str,
    /// When it changed last.
    pub lastmod: Timestamp,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl Resource {
    /// The published digest, hexadecimal.
    pub fn sha256(&self) -> String {
        Sha256::digest(&self.bytes).iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

const LETTERS: &[(&str, &str)] = &[
    (
        "1851-02-14",
        "Sir,\n\nthe storm of the 12th took the outer beacon and two of the herring boats. The crews are safe.\n\
         I ask for timber and forty fathoms of chain before the equinox.\n\n\tH. Maas, harbour master\n",
    ),
    (
        "1851-03-02",
        "Sir,\n\nthe timber came, the chain did not. The glass has been falling since noon; should the storm come\n\
         from the west we shall lose the mole as well.\n\n\tH. Maas, harbour master\n",
    ),
    (
        "1851-03-09",
        "Sir,\n\nthe mole stands. The chain came this morning, an hour after it was needed, and is of excellent quality.\n\
         \n\tH. Maas, harbour master\n",
    ),
];

const NOTICE: &str =
    "Read me first\n\nThese are the papers of a harbour office: letters, a year of weather, and a register of ships.\n";

const REGISTER: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<register>\n  <ship name=\"Anna Catharina\" tons=\"112\"/>\n  \
                        <ship name=\"Goede Hoop\" tons=\"86\"/>\n  <ship name=\"Zeemeeuw\" tons=\"9\"/>\n</register>\n";

/// The time of the first edition.
const FIRST_EDITION: i64 = 1_700_000_000;

/// The collection after `published` letters were added to the first edition.
pub fn resources(published: &[Timestamp]) -> Vec<Resource> {
    let first = |path: &str, media_type, text: &str| Resource {
        path: path.to_owned(),
        media_type,
        lastmod: Timestamp { seconds: FIRST_EDITION, nanos: 0 },
        bytes: text.as_bytes().to_vec(),
    };
    let mut all =
        vec![first("README", "text/plain", NOTICE), first("register%20of%20ships.xml", "application/xml", REGISTER)];
    all.extend(LETTERS.iter().map(|(date, text)| first(&format!("letters/{date}.txt"), "text/plain", text)));
    all.extend((1..=12).map(|month| first(&format!("weather/1851/{month:02}.csv"), "text/csv", &weather(month))));
    all.extend(published.iter().enumerate().map(|(number, when)| Resource {
        path: format!("letters/new-{}.txt", number + 1),
        media_type: "text/plain",
        lastmod: *when,
        bytes:
            format!("Sir,\n\nthis is letter {} since you mounted the office.\n\n\tH. Maas\n", number + 1).into_bytes(),
    }));
    all
}

/// A month of made-up weather, the same each time.
fn weather(month: u32) -> String {
    let mut table = String::from("day,wind,force,glass\n");
    for day in 1..=28 {
        let seed = month * 31 + day * 7;
        let wind = ["N", "NE", "E", "SE", "S", "SW", "W", "NW"][(seed % 8) as usize];
        table.push_str(&format!("1851-{month:02}-{day:02},{wind},{},{}\n", seed % 11, 980 + seed % 50));
    }
    table
}
