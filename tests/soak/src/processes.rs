//! The processes that the orchestrator starts, and what they tell it.

use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc;

use crate::Result;
use crate::lines::{Figures, Line};
use crate::member::Style;

/// What happens in the other processes.
#[derive(Debug)]
pub(crate) enum Event {
    /// A partition's log has grown up to here.
    Produced(u32, u64),
    /// A member says something.
    Said(u64, Line),
    /// A member's process has ended, and all that it said was told before.
    Ended(u64, String),
    /// The soak itself can't go on.
    Broken(String),
}

fn start(arguments: &[&str]) -> Result<Child> {
    // A group of its own: Ctrl-C is for the orchestrator, which ends the others. They also end where it does not.
    let mut command = Command::new(std::env::current_exe()?);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0).kill_on_drop(true);
    Ok(command.spawn()?)
}

/// The cluster's process.
pub(crate) struct Brokers {
    pub(crate) child: Child,
    /// Where the brokers listen, with commas between.
    pub(crate) addresses: String,
    pub(crate) control: String,
}

impl Brokers {
    pub(crate) async fn start() -> Result<Self> {
        #[derive(Deserialize)]
        struct Ready {
            brokers: Vec<String>,
            control: String,
        }
        let mut child = start(&["brokers"])?;
        let mut line = String::new();
        let out = child.stdout.take().ok_or("the brokers' process has no output")?;
        BufReader::new(out).read_line(&mut line).await?;
        let Ready { brokers, control } = serde_json::from_str(&line)?;
        Ok(Self { child, addresses: brokers.join(","), control })
    }
}

/// A member's process.
pub(crate) struct Member {
    /// One of the group's three places. Who is replaced leaves it to the next.
    pub(crate) slot: usize,
    pub(crate) style: Style,
    pub(crate) mode: &'static str,
    pid: Pid,
    /// It closes when this is dropped.
    stdin: Option<ChildStdin>,
    /// Whether it was killed or asked to close, so that it may end.
    pub(crate) may_end: bool,
    pub(crate) figures: Option<Box<Figures>>,
}

impl Member {
    /// Starts a member, whose events come under this number.
    pub(crate) fn start(
        slot: usize,
        mode: &'static str,
        brokers: &str,
        number: u64,
        events: &mpsc::Sender<Event>,
    ) -> Result<Self> {
        let style = Style::ALL[slot];
        let mut child = start(&["member", "--brokers", brokers, "--style", style.name(), "--mode", mode])?;
        let pid = Pid::from_raw(child.id().ok_or("a member ended at once")? as i32);
        let stdin = child.stdin.take();
        tokio::spawn(listen(child, number, events.clone()));
        Ok(Self { slot, style, mode, pid, stdin, may_end: false, figures: None })
    }

    /// As if its machine had lost power.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.may_end = true;
        Ok(kill(self.pid, Signal::SIGKILL)?)
    }

    /// Asks it to close its consumer and end. One that is suspended hears of it later.
    pub(crate) fn close(&mut self) {
        self.may_end = true;
        self.stdin = None;
    }

    /// Stops it as a long pause of a machine does.
    pub(crate) fn suspend(&self) -> Result<()> {
        Ok(kill(self.pid, Signal::SIGSTOP)?)
    }

    pub(crate) fn go_on(&self) -> Result<()> {
        Ok(kill(self.pid, Signal::SIGCONT)?)
    }
}

/// Passes on what a member says until it has ended.
async fn listen(mut child: Child, number: u64, events: mpsc::Sender<Event>) {
    if let Some(out) = child.stdout.take() {
        let (mut out, mut line) = (BufReader::new(out), Vec::new());
        // What a SIGKILL has cut off has no end of a line, and wasn't said.
        while out.read_until(b'\n', &mut line).await.is_ok() && line.ends_with(b"\n") {
            let event = match serde_json::from_slice(&line) {
                Ok(said) => Event::Said(number, said),
                Err(error) => {
                    Event::Broken(format!("member {number} said {:?}: {error}", String::from_utf8_lossy(&line)))
                }
            };
            if events.send(event).await.is_err() {
                return;
            }
            line.clear();
        }
    }
    let ended = match child.wait().await {
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    };
    let _ = events.send(Event::Ended(number, ended)).await;
}
