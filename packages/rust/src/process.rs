//! The process of a server.

use crate::Error;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::Mutex;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// In which a server ends on any machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// In which the end of a process whose connections are closed is noticed.
const NOTICED: Duration = Duration::from_secs(1);

/// A process of `lockkeeper serve`. It ends when this process ends, whatever ends it.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) id: u32,
    pub(crate) url: String,
    pub(crate) connect: String,
    running: Mutex<Option<(Child, JoinHandle<()>)>>, // None when it has ended
}

impl Process {
    /// Starts the program, or the one in LOCKKEEPER_BINARY, or else the one on the PATH.
    pub(crate) fn start(program: Option<&Path>, flags: &[String]) -> Result<Process, Error> {
        let named = || std::env::var_os("LOCKKEEPER_BINARY").filter(|name| !name.is_empty()).map(PathBuf::from);
        let program = program.map(Path::to_path_buf).or_else(named).unwrap_or_else(|| PathBuf::from("lockkeeper"));
        let mut command = Command::new(&program);
        command.args(["serve", "--memory", "--log-level", "error", "--test-control", "127.0.0.1:0", "--until-stdin-closes"]).args(flags);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("LOCKKEEPER_")) {
            command.env_remove(name); // they are flags
        }
        // Its standard input is a pipe that is never written to. However this process ends, the system closes it.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|e| {
            let place = match program.components().count() {
                1 => " on the PATH".to_string(),
                _ if program.is_relative() => std::env::current_dir().map_or(String::new(), |dir| format!(" in {}", dir.display())),
                _ => String::new(),
            };
            Error::Start(format!("cannot start {}{place}; the variable LOCKKEEPER_BINARY can name another program, best with an absolute path: {e}", program.display()))
        })?;
        let id = child.id();
        let mut said = BufReader::new(child.stderr.take().expect("its standard error is a pipe"));
        let addresses = address(&mut said, "test control on ").and_then(|url| Ok((url, address(&mut said, "serving ZooKeeper clients on ")?)));
        match addresses {
            Ok((url, connect)) => {
                let reader = std::thread::spawn(move || said.lines().map_while(Result::ok).for_each(|line| eprintln!("{line}")));
                Ok(Process { id, url, connect, running: Mutex::new(Some((child, reader))) })
            }
            Err(why) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(why)
            }
        }
    }

    /// Returns how the process has ended, if it has, and not by [`Process::end`]. The end of one whose connections are
    /// closed is noticed in a moment.
    pub(crate) fn died(&self) -> Option<String> {
        let mut running = self.running.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let (child, _) = running.as_mut()?;
        let began = Instant::now();
        loop {
            match child.try_wait() {
                Ok(Some(how)) => return Some(how.to_string()),
                Ok(None) if began.elapsed() < NOTICED => std::thread::sleep(Duration::from_millis(1)),
                _ => return None,
            }
        }
    }

    /// Ends the process as on SIGTERM. Returns how it has ended, if something else has ended it.
    pub(crate) fn end(&self) -> Option<String> {
        let running = self.running.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        let (mut child, reader) = running?;
        let early = child.try_wait().ok().flatten();
        drop(child.stdin.take());
        let began = Instant::now();
        while matches!(child.try_wait(), Ok(None)) {
            if began.elapsed() > PATIENCE {
                let _ = child.kill();
                let _ = child.wait();
                break;
            }
            std::thread::sleep(Duration::from_millis(1)); // the standard library cannot wait with a limit
        }
        let _ = reader.join();
        let how = child.wait().ok()?; // as it was seen above
        (early.is_some() || !how.success()).then(|| how.to_string())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// Returns the address in the next line that tells one; lines of the log may come first.
fn address(said: &mut BufReader<ChildStderr>, what: &str) -> Result<String, Error> {
    let mut last = String::new();
    for line in said.lines().map_while(Result::ok) {
        // With --log-format json it is in a line of JSON.
        if let Some((_, address)) = line.split_once(&format!("lockkeeper: {what}")) {
            return Ok(address.split('"').next().unwrap_or_default().trim().to_string());
        }
        last = format!("{last}\n{line}");
    }
    Err(Error::Start(format!("lockkeeper has ended instead of serving clients:{last}")))
}
