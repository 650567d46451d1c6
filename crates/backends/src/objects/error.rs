//! What object storage answered, in words that help.

use std::error::Error as StdError;
use std::fmt;

use cairn_core::ErrorKind;
use object_store::client::HttpError;

use super::http::Seen;

/// What follows from an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// No such object.
    NotFound,
    /// There already is one.
    Exists,
    /// A retry may mend it.
    Transient,
    /// It won't be mended without a person.
    Refused,
}

/// A call that failed. Its text has the operation, the key, the tries and the time, the status and the code that the store gave, and the
/// request id where there was one: what a provider's support asks for.
#[derive(Debug, Clone)]
pub struct ObjectError {
    pub(super) op: &'static str,
    pub(super) key: String,
    pub(super) class: Class,
    pub(super) tries: u32,
    pub(super) elapsed_ms: u64,
    pub(super) status: Option<u16>,
    pub(super) code: Option<String>,
    pub(super) request_id: Option<String>,
    pub(super) retry_after_ms: Option<u64>,
    message: String,
}

/// The longest text of the store that an error repeats, in characters.
const MESSAGE_CHARS: usize = 300;

/// Codes that say "try again" whatever the status: S3 sends some of them with 400 or 200.
const TRANSIENT_CODES: [&str; 14] = [
    "SlowDown",
    "InternalError",
    "InternalServerError",
    "ServiceUnavailable",
    "RequestTimeout",
    "RequestThrottled",
    "Throttling",
    "ThrottlingException",
    "TooManyRequests",
    "OperationAborted",
    "ConditionalRequestConflict",
    "IncompleteBody",
    "BadDigest",
    "ExpiredToken",
];

impl ObjectError {
    pub(super) fn from_store(
        op: &'static str,
        key: &str,
        error: object_store::Error,
        seen: Seen,
    ) -> ObjectError {
        let class = classify(&error, &seen);
        let message = match (&seen.message, class) {
            (Some(message), _) => message.clone(),
            // Nothing of what the library would add says more than the status and the code.
            (None, Class::NotFound) => "no such object".to_owned(),
            (None, _) if seen.failed => String::new(),
            (None, _) => innermost(&error),
        };
        Self::new(op, key, class, seen, message)
    }

    pub(super) fn timed_out(op: &'static str, key: &str, timeout_ms: u64, seen: Seen) -> ObjectError {
        Self::new(op, key, Class::Transient, seen, format!("no answer within {timeout_ms} ms"))
    }

    pub(super) fn new(op: &'static str, key: &str, class: Class, seen: Seen, message: String) -> ObjectError {
        ObjectError {
            op,
            key: key.to_owned(),
            class,
            tries: 1,
            elapsed_ms: 0,
            status: seen.status.filter(|_| seen.failed),
            code: seen.code,
            request_id: seen.request_id,
            retry_after_ms: seen.retry_after_ms,
            message: message.chars().take(MESSAGE_CHARS).collect(),
        }
    }

    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        match self.class {
            Class::Transient => ErrorKind::Retry,
            Class::NotFound | Class::Exists => ErrorKind::GiveUp,
            Class::Refused => ErrorKind::Halt,
        }
    }

    /// The key, below the location's prefix.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The id by which the provider knows the last request, where it gave one.
    pub fn request_id(&self) -> Option<&str> {
        self.request_id.as_deref()
    }

    /// How often it was tried.
    pub fn tries(&self) -> u32 {
        self.tries
    }
}

impl fmt::Display for ObjectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} failed", self.op, self.key)?;
        if self.tries > 1 {
            write!(f, " after {} tries in {} ms", self.tries, self.elapsed_ms)?;
        }
        let mut parts = vec![];
        parts.extend(self.status.map(|status| format!("status {status}")));
        parts.extend(self.code.clone());
        parts.extend(Some(self.message.clone()).filter(|message| !message.is_empty()));
        parts.extend(self.request_id.as_ref().map(|id| format!("request id {id}")));
        if self.class == Class::Refused && matches!(self.status, Some(401 | 403)) {
            parts.push("check credentials, permissions and the clock".to_owned());
        }
        if matches!(self.status, Some(301 | 307)) {
            parts.push("check region and endpoint".to_owned());
        }
        if !parts.is_empty() {
            write!(f, ": {}", parts.join(", "))?;
        }
        Ok(())
    }
}

impl StdError for ObjectError {}

fn classify(error: &object_store::Error, seen: &Seen) -> Class {
    use object_store::Error;
    match seen.code.as_deref() {
        Some("NoSuchBucket") => return Class::Refused,
        Some(code) if seen.failed && TRANSIENT_CODES.contains(&code) => return Class::Transient,
        _ => {}
    }
    match error {
        Error::NotFound { .. } => Class::NotFound,
        Error::AlreadyExists { .. } | Error::Precondition { .. } | Error::NotModified { .. } => Class::Exists,
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => Class::Refused,
        Error::Generic { .. } => match seen.status.filter(|_| seen.failed) {
            Some(408 | 425 | 429 | 500 | 502..=599) => Class::Transient,
            Some(_) => Class::Refused,
            None => classify_source(error),
        },
        Error::JoinError { .. } => Class::Transient,
        _ => Class::Refused,
    }
}

/// Errors without an answer: the network, or the local file system.
fn classify_source(error: &object_store::Error) -> Class {
    let mut source: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(error) = source {
        if error.is::<HttpError>() {
            return Class::Transient;
        }
        if let Some(error) = error.downcast_ref::<std::io::Error>() {
            use std::io::ErrorKind;
            return match error.kind() {
                ErrorKind::PermissionDenied
                | ErrorKind::ReadOnlyFilesystem
                | ErrorKind::NotADirectory
                | ErrorKind::IsADirectory
                | ErrorKind::InvalidInput
                | ErrorKind::InvalidFilename => Class::Refused,
                _ => Class::Transient,
            };
        }
        source = error.source();
    }
    // An answer that could not be understood, such as a listing cut short.
    Class::Transient
}

fn innermost(error: &object_store::Error) -> String {
    let mut text = error.to_string();
    let mut source = StdError::source(error);
    while let Some(inner) = source {
        text = inner.to_string();
        source = inner.source();
    }
    text
}
