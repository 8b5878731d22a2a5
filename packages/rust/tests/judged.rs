//! Runs the cases of packages/judged.json, which says what they mean. A case's test ends when its server is dropped.

use lockkeeper_test::{Fault, Json, Server};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::process::Command;

fn fault(fields: &Json) -> Fault {
    let mut fault = if fields.get("do").text() == "closeBefore" { Fault::close_before() } else { Fault::close_after() };
    fault = fault.op(fields.get("op").text());
    if !fields.get("path").text().is_empty() {
        fault = fault.path(fields.get("path").text());
    }
    if fields.get("optional").flag() {
        fault = fault.optional();
    }
    fault
}

/// Sends what a client begins with, for a new session, and waits until the server answers or closes the connection.
fn handshake(address: &str) {
    let mut request = [0; 48];
    request[3] = 44;
    request[16..20].copy_from_slice(&10_000_i32.to_be_bytes());
    request[31] = 16;
    let mut connection = TcpStream::connect(address).unwrap();
    let _ = connection.write_all(&request).and_then(|()| connection.read(&mut request));
}

fn kill(process: u32) {
    assert!(Command::new("kill").args(["-KILL", &process.to_string()]).status().unwrap().success());
    // It has ended when its parent, which is this process, has to be told so: it is a zombie.
    let stat = format!("/proc/{process}/stat");
    while std::fs::read_to_string(&stat).is_ok_and(|text| !text.contains(") Z ")) {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

fn run(case: &Json) {
    let server = if case.get("cluster").flag() { Server::start_cluster(3) } else { Server::start() }.unwrap();
    let (mut injection, mut guard, mut snapshot) = (None, None, None);
    for step in case.get("steps").list() {
        let Json::Object(fields) = step else { panic!("{step}") };
        let (name, argument) = &fields[0];
        match name.as_str() {
            "inject" | "scoped" => injection = Some(server.inject(fault(argument)).unwrap()), // dropping one ends nothing
            "remove" => drop(injection.as_ref().unwrap().remove().unwrap()),
            "guard" => guard = Some(server.guard(argument.text()).unwrap()),
            "write" => drop(guard.as_ref().unwrap().write(argument.number(), "").unwrap()),
            "guarded" => drop(server.guard(argument.text()).unwrap().write(step.get("write").number(), "").unwrap()),
            "verdict" => drop(guard.take().unwrap().verdict().unwrap()),
            "connect" => handshake(server.connect_string()),
            "refused" if argument.text() == "partition" => drop(server.partition(&[&[1], &[2]]).unwrap_err()),
            "refused" => drop(server.member(1).restart().unwrap_err()),
            "kill" => server.member(argument.number() as u32).kill().unwrap(),
            "snapshot" => snapshot = Some(server.snapshot().unwrap()),
            "restore" => server.restore(snapshot.as_ref().unwrap()).unwrap(),
            "stop" => return drop(server),
            "killProcess" => kill(server.pid()),
            _ => panic!("{step}"),
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn judges() {
    let cases = Json::read(include_str!("../../judged.json")).unwrap();
    let mut wrong = Vec::new();
    for case in cases.get("cases").list() {
        let why = match catch_unwind(AssertUnwindSafe(|| run(case))) {
            Ok(()) => String::new(),
            Err(panic) => panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "it panics".to_string()),
        };
        let fails = case.get("fails").list();
        if fails.is_empty() != why.is_empty() || !fails.iter().all(|text| why.contains(text.text())) {
            wrong.push(format!("{}: {why:?}", case.get("name").text()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(cases.get("cases").list().len() > 20);
}
