//! How do we run the iptables programs?
//!
//! One `iptables-restore --noflush` for each transaction, fed through its standard input; `iptables-save`
//! only before a full sync and in comparisons. The wait for the xtables lock, which every program that
//! touches the tables shares, and every run as a whole are bounded.

use std::marker::PhantomData;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use pointsman_dataplane::ProgramError;
use pointsman_iptables::saved::InventoryReader;
use pointsman_iptables::{Inventory, Transaction, render};
use pointsman_model::{Address, IpFamily};

use crate::program::{Ended, Program};
pub use crate::variant::Variant;

/// How long the tools wait for the xtables lock (upstream's value).
pub const LOCK_WAIT: Duration = Duration::from_secs(5);

/// How long a program may run: far more than any should, so that one that hangs does not hang the proxy.
pub const RUN_LIMIT: Duration = Duration::from_secs(300);

/// The exit status for a lock that was not free in time, and for other passing shortages.
const RESOURCE_PROBLEM: i32 = 4;

/// Writes iptables rules of one family in the network namespace of the calling thread.
#[derive(Clone, Debug)]
pub struct Iptables<A> {
    variant: Variant,
    lock_wait: Duration,
    run_limit: Duration,
    directory: Option<PathBuf>,
    family: PhantomData<A>,
}

/// The size of what was written, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InputSize {
    /// Bytes of restore input.
    pub bytes: usize,
    /// Lines of restore input.
    pub lines: usize,
    /// Chains written or removed.
    pub chains: usize,
}

impl InputSize {
    fn of<A: Address>(transaction: &Transaction<A>, input: &str) -> Self {
        let lines = input.bytes().filter(|byte| *byte == b'\n').count();
        Self {
            bytes: input.len(),
            lines,
            chains: transaction.chains(),
        }
    }
}

impl<A: Address> Iptables<A> {
    /// A writer that uses the given variant of the programs.
    pub fn new(variant: Variant) -> Self {
        Self {
            variant,
            lock_wait: LOCK_WAIT,
            run_limit: RUN_LIMIT,
            directory: None,
            family: PhantomData,
        }
    }

    /// Runs the programs of this directory instead of searching for them.
    #[must_use]
    pub fn in_directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = Some(directory.into());
        self
    }

    /// Waits this long for the xtables lock instead of [`LOCK_WAIT`]; whole seconds count.
    #[must_use]
    pub fn with_lock_wait(mut self, wait: Duration) -> Self {
        self.lock_wait = wait;
        self
    }

    /// Lets a program run this long instead of [`RUN_LIMIT`].
    #[must_use]
    pub fn with_run_limit(mut self, limit: Duration) -> Self {
        self.run_limit = limit;
        self
    }

    /// Applies a transaction and says how large its input was.
    pub fn restore(&self, transaction: &Transaction<A>) -> Result<InputSize, ProgramError> {
        let input = render::transaction(transaction);
        let size = InputSize::of(transaction, &input);
        if size.bytes > 0 {
            self.restore_text(&input)?;
        }
        Ok(size)
    }

    /// Whether our canary chain is still there; its absence means that somebody flushed the tables.
    pub fn canary_is_alive(&self) -> Result<bool, ProgramError> {
        Ok(self.chain("mangle", "KUBE-PROXY-CANARY")?.is_some())
    }

    /// The rules of a chain as text; `None` if there is no such chain.
    pub(crate) fn chain(&self, table: &str, chain: &str) -> Result<Option<String>, ProgramError> {
        let program = self.program("");
        let wait = self.lock_wait.as_secs().to_string();
        let mut rules = String::new();
        let arguments = ["-w", &wait, "-t", table, "-S", chain];
        let ended = self.prepared(&program, &arguments).read(|line| {
            rules.push_str(line);
            rules.push('\n');
        })?;
        match ended.status.code() {
            Some(0) => Ok(Some(rules)),
            Some(1) => Ok(None),
            _ => Err(failure(&program, &ended, "")),
        }
    }

    /// Lists what is there under names of ours: enough to clear leftovers after a restart and to notice what
    /// others changed. Slow: for full syncs and comparisons, never for a change.
    pub fn inventory(&self) -> Result<Inventory, ProgramError> {
        let mut reader = InventoryReader::default();
        for table in ["filter", "nat", "mangle"] {
            self.read_save(table, |line| reader.line(line))?;
        }
        reader
            .try_finish()
            .map_err(|unreadable| ProgramError::Interrupted {
                program: self.program("-save"),
                how: unreadable.to_string(),
            })
    }

    /// Everything in a table, as `iptables-save` prints it.
    pub fn save(&self, table: &str) -> Result<String, ProgramError> {
        let mut saved = String::new();
        self.read_save(table, |line| {
            saved.push_str(line);
            saved.push('\n');
        })?;
        Ok(saved)
    }

    /// The name of one of the programs for this family and variant.
    fn program(&self, suffix: &str) -> String {
        let family = match A::FAMILY {
            IpFamily::V4 => "iptables",
            IpFamily::V6 => "ip6tables",
        };
        format!("{family}{}{suffix}", self.variant.infix())
    }

    fn prepared(&self, program: &str, arguments: &[&str]) -> Program {
        let mut command = match &self.directory {
            Some(directory) => Command::new(directory.join(program)),
            None => Command::new(program),
        };
        command.args(arguments);
        Program::new(program.to_owned(), command, self.run_limit)
    }

    fn restore_text(&self, input: &str) -> Result<(), ProgramError> {
        let program = self.program("-restore");
        let wait = self.lock_wait.as_secs().to_string();
        let arguments = ["-w", &wait, "--noflush", "--counters"];
        let ended = self.prepared(&program, &arguments).feed(input)?;
        if ended.status.success() {
            Ok(())
        } else {
            Err(failure(&program, &ended, input))
        }
    }

    pub(crate) fn read_save(&self, table: &str, each_line: impl FnMut(&str)) -> Result<(), ProgramError> {
        let program = self.program("-save");
        let ended = self.prepared(&program, &["-t", table]).read(each_line)?;
        if ended.status.success() {
            Ok(())
        } else {
            Err(failure(&program, &ended, ""))
        }
    }
}

pub(crate) fn failure(program: &str, ended: &Ended, input: &str) -> ProgramError {
    let program = program.to_owned();
    let status: ExitStatus = ended.status;
    let message = String::from_utf8_lossy(&ended.errors);
    match status.code() {
        None => ProgramError::Interrupted {
            program,
            how: status.to_string(),
        },
        // The lock is taken anew for each table, so those before it may have been written.
        Some(RESOURCE_PROBLEM) if message.contains("lock") && tables(input) <= 1 => {
            ProgramError::Busy { program }
        }
        Some(_) => {
            let rule = failing_line(&message).and_then(|line| input.lines().nth(line.checked_sub(1)?));
            ProgramError::Refused {
                program,
                rule: rule.map(str::to_owned),
                message: shorten(&message),
            }
        }
    }
}

fn tables(input: &str) -> usize {
    input.lines().filter(|line| line.starts_with('*')).count()
}

/// The number of the input line that a message complains about.
fn failing_line(message: &str) -> Option<usize> {
    let mut words = message.split(|character: char| !character.is_alphanumeric());
    while let Some(word) = words.next() {
        if word == "line" {
            let number = words.by_ref().find(|word| !word.is_empty())?;
            if let Ok(number) = number.parse() {
                return Some(number);
            }
        }
    }
    None
}

/// The first lines of a message, without the advice every message ends with.
pub(crate) fn shorten(message: &str) -> String {
    let lines = message
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("Try `"));
    let text: Vec<&str> = lines.take(3).collect();
    text.join("; ").chars().take(300).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_both_variants_name_the_failing_line() {
        assert_eq!(failing_line("iptables-restore: line 7 failed"), Some(7));
        assert_eq!(
            failing_line("Bad argument `x'\nError occurred at line: 12\nTry ..."),
            Some(12)
        );
        assert_eq!(
            failing_line("line 4: CHAIN_ADD failed (Device or resource busy): chain X"),
            Some(4)
        );
        assert_eq!(failing_line("no such luck"), None);
    }

    #[test]
    fn a_held_lock_means_that_nothing_was_written_only_for_a_single_table() {
        use std::os::unix::process::ExitStatusExt;
        let ended = Ended {
            status: ExitStatus::from_raw(RESOURCE_PROBLEM << 8),
            errors: b"Another app is currently holding the xtables lock.".to_vec(),
        };
        let of = |input| failure("iptables-restore", &ended, input);
        assert!(matches!(of("*nat\nCOMMIT\n"), ProgramError::Busy { .. }));
        let two = of("*filter\nCOMMIT\n*nat\nCOMMIT\n");
        assert!(matches!(two, ProgramError::Refused { .. }), "{two:?}");
    }

    #[test]
    fn long_messages_are_shortened() {
        let message = format!("first\n\nTry `iptables -h' or so\n{}", "x".repeat(1000));
        let short = shorten(&message);
        assert!(short.starts_with("first; xxx") && short.len() == 300, "{short}");
    }
}
