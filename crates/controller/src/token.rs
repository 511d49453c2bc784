//! The bearer token that lets a program change the policy over HTTP.

use std::fs::File;
use std::io::{self, Read};

use subtle::ConstantTimeEq;
use tidegate_fabric::trusted::{FILE_MODE, Folder, Secrecy, TrustError, TrustProblem};

/// Bytes of randomness in a token; guessing 128 bits is hopeless, and twice that costs nothing.
const RANDOM_BYTES: usize = 32;

/// The token's file in the state directory.
const FILE: &str = "token";

/// A bearer token. It is never printed.
#[derive(Clone)]
pub(crate) struct Token(String);

impl Token {
    /// Reads the token in `folder`, or makes one that only the daemon's own user can read. One that
    /// another user could have put there or read is refused.
    pub(crate) fn open(folder: &Folder) -> Result<Self, TrustError> {
        match folder.read(FILE, Secrecy::Secret) {
            Ok(bytes) => {
                let text = String::from_utf8_lossy(&bytes);
                if text.trim().len() >= RANDOM_BYTES {
                    return Ok(Self(text.trim().into()));
                }
                // A file whose first write was interrupted is made anew.
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let text = random().map_err(|error| {
            let path = folder.path().join(FILE);
            TrustError { path, problem: TrustProblem::Io(error) }
        })?;
        folder.replace(FILE, format!("{text}\n").as_bytes(), FILE_MODE)?;
        Ok(Self(text))
    }

    /// Whether an `Authorization` header carries this token. Takes as long for a token that is
    /// nearly right as for one that is quite wrong.
    pub(crate) fn is_in(&self, header: &[u8]) -> bool {
        let Some((scheme, given)) = header.split_at_checked(7) else { return false };
        scheme.eq_ignore_ascii_case(b"bearer ") && bool::from(given.ct_eq(self.0.as_bytes()))
    }
}

fn random() -> io::Result<String> {
    let mut random = [0; RANDOM_BYTES];
    File::open("/dev/urandom")?.read_exact(&mut random)?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use tidegate_fabric::trusted::Purpose;

    #[test]
    fn a_token_is_made_once_and_for_its_owner_only() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let folder = Folder::open(directory.path(), Purpose::Private).unwrap();
        let token = Token::open(&folder).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(Token::open(&folder).unwrap().0, token.0);
        assert!(token.is_in(format!("Bearer {}", token.0).as_bytes()));
        assert!(token.is_in(format!("bearer {}", token.0).as_bytes()));
        assert!(!token.is_in(format!("Bearer {}0", token.0).as_bytes()));
        assert!(!token.is_in(token.0.as_bytes()));
        assert!(!token.is_in(b"Bearer"));
        fs::write(&path, "cut off").unwrap();
        let token = Token::open(&folder).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{}\n", token.0));
    }

    #[test]
    fn a_token_is_256_random_bits() {
        let tokens = [(); 2].map(|()| {
            let directory = tempfile::tempdir().unwrap();
            Token::open(&Folder::open(directory.path(), Purpose::Private).unwrap()).unwrap().0
        });
        for token in &tokens {
            assert!(token.len() == 64 && token.bytes().all(|byte| byte.is_ascii_hexdigit()));
        }
        assert_ne!(tokens[0], tokens[1], "each controller has its own");
    }

    #[test]
    fn a_token_that_others_could_read_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let folder = Folder::open(directory.path(), Purpose::Private).unwrap();
        Token::open(&folder).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o604)).unwrap();
        let error = Token::open(&folder).err().unwrap().to_string();
        assert!(error.contains("token has mode 0604") && error.contains("(chmod 600 "), "{error}");
    }
}
