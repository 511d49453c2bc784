//! The secret that lets a program change the policy over HTTP.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use subtle::ConstantTimeEq;

/// Bytes of randomness in a token; guessing 128 bits is hopeless, and twice that costs nothing.
const RANDOM_BYTES: usize = 32;

/// A bearer token. It is never printed.
#[derive(Clone)]
pub(crate) struct Token(String);

impl Token {
    /// Reads the token at `path`, or makes one that only the owner of the file can read.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        match fs::read_to_string(path) {
            Ok(text) if text.trim().len() >= RANDOM_BYTES => return Ok(Self(text.trim().into())),
            // A file that was cut off while it was first written is made anew.
            Ok(_) => fs::remove_file(path)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let mut random = [0; RANDOM_BYTES];
        File::open("/dev/urandom")?.read_exact(&mut random)?;
        let text: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        writeln!(file, "{text}")?;
        file.sync_all()?;
        Ok(Self(text))
    }

    /// Whether an `Authorization` header carries this token. Takes as long for a token that is
    /// nearly right as for one that is quite wrong.
    pub(crate) fn is_in(&self, header: &[u8]) -> bool {
        let Some((scheme, given)) = header.split_at_checked(7) else { return false };
        scheme.eq_ignore_ascii_case(b"bearer ") && bool::from(given.ct_eq(self.0.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_token_is_made_once_and_for_its_owner_only() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let token = Token::open(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(Token::open(&path).unwrap().0, token.0);
        assert!(token.is_in(format!("Bearer {}", token.0).as_bytes()));
        assert!(token.is_in(format!("bearer {}", token.0).as_bytes()));
        assert!(!token.is_in(format!("Bearer {}0", token.0).as_bytes()));
        assert!(!token.is_in(token.0.as_bytes()));
        assert!(!token.is_in(b"Bearer"));
    }
}
