//! What becomes of a test that cannot run on this machine?
//!
//! It says why and passes; where every test must run, because `POINTSMAN_REQUIRE_NETNS` is set as `make test` does for
//! root and in CI, it fails instead. Either way a line goes into the file that `POINTSMAN_SKIPS` names, which
//! `make test` counts. All skips go through here; `pointsman-tidy` looks for others.

use std::fs::OpenOptions;
use std::io::Write;

/// Set where no test may be skipped.
pub const REQUIRED: &str = "POINTSMAN_REQUIRE_NETNS";
/// Names the file of skipped tests.
pub const RECORD: &str = "POINTSMAN_SKIPS";

/// Says that the calling test is skipped, which then returns.
///
/// # Panics
/// Where no test may be skipped.
pub fn skip(reason: &str) {
    if let Some(path) = std::env::var_os(RECORD) {
        let file = OpenOptions::new().create(true).append(true).open(&path);
        let mut file = file.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        // One write, so that lines of tests that run at the same time stay whole.
        let line = format!("{}: {}\n", test(), reason.trim().replace('\n', " "));
        file.write_all(line.as_bytes())
            .expect("the record of skipped tests can be written");
    }
    let required = std::env::var_os(REQUIRED).is_some();
    assert!(
        !required,
        "every test must run here, but this one cannot: {reason}"
    );
    eprintln!("skipped: {reason}");
}

/// The name of the test, as far as its runner says it.
fn test() -> String {
    let named = std::env::var("NEXTEST_BINARY_ID").and_then(|binary| {
        let test = std::env::var("NEXTEST_TEST_NAME")?;
        Ok(format!("{binary} {test}"))
    });
    named.unwrap_or_else(|_| std::thread::current().name().unwrap_or("a test").to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Output};

    /// Only of use as a child of the tests below.
    #[test]
    fn a_child() {
        if std::env::var_os("SKIP_A_CHILD").is_some() {
            skip("this machine\nlacks something");
        }
    }

    fn child(required: bool) -> (Output, String) {
        let record = tempfile::NamedTempFile::new().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "--nocapture", "skip::tests::a_child"]);
        child.env("SKIP_A_CHILD", "1").env(RECORD, record.path());
        child
            .env_remove(REQUIRED)
            .env("NEXTEST_BINARY_ID", "suite")
            .env("NEXTEST_TEST_NAME", "a_child");
        if required {
            child.env(REQUIRED, "1");
        }
        let output = child.output().unwrap();
        (output, std::fs::read_to_string(record.path()).unwrap())
    }

    const LINE: &str = "suite a_child: this machine lacks something\n";

    #[test]
    fn a_skipped_test_passes_says_why_and_is_recorded() {
        let (output, record) = child(false);
        assert!(output.status.success(), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("skipped: this machine"));
        assert_eq!(record, LINE);
    }

    #[test]
    fn where_every_test_must_run_a_skipped_one_fails_and_is_recorded() {
        let (output, record) = child(true);
        assert!(!output.status.success(), "{output:?}");
        assert_eq!(record, LINE);
    }
}
