//! A panic is a defect of ours. It must reach the application as an error, not unwind into another language.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use cursus_consumer::{Error, ErrorKind, Result};

/// Runs what may panic, and makes an [`ErrorKind::Internal`] of a panic.
///
/// Whatever was half changed is the engine's own, behind locks that don't poison; the alternative is the process's end.
pub fn guard<T>(run: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|payload| Err(error(payload.as_ref())))
}

fn error(payload: &(dyn Any + Send)) -> Error {
    let said = payload.downcast_ref::<&str>().copied();
    let said = said.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
    Error::new(ErrorKind::Internal, format!("a defect of cursus-consumer, please report it: {said}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error_that_keeps_its_words() {
        let literal = guard::<()>(|| panic!("out of cheese")).unwrap_err();
        let formatted = guard::<()>(|| panic!("out of {}", "cheese")).unwrap_err();
        for error in [literal, formatted] {
            assert_eq!(error.kind(), ErrorKind::Internal);
            assert!(error.to_string().contains("report it: out of cheese"), "{error}");
        }
        assert!(guard(|| Ok(1)).is_ok_and(|one| one == 1));
    }
}
