//! Requests to the test control.

use crate::{Error, Json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// The server replies to all requests; a wait has its own limit, which is below this.
const LONGEST: Duration = Duration::from_secs(600);

/// Sends a request to http://HOST:PORT/PREFIX and PATH, with a body if it is not a GET.
pub(crate) fn send(url: &str, path: &str, body: Option<&Json>) -> Result<Json, Error> {
    let silent = |e: std::io::Error| Error::Silent(format!("{path}: the server does not answer: {e}"));
    let address = url.strip_prefix("http://").unwrap_or(url);
    let (host, prefix) = address.split_at(address.find('/').unwrap_or(address.len()));
    let mut connection = TcpStream::connect(host).map_err(silent)?;
    connection.set_read_timeout(Some(LONGEST)).map_err(silent)?;
    let method = if body.is_some() { "POST" } else { "GET" };
    let body = body.map_or(String::new(), Json::to_string);
    // With HTTP/1.0 the reply is what comes until the end of the connection.
    let request = format!("{method} {prefix}{path} HTTP/1.0\r\nHost: {host}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    connection.write_all(request.as_bytes()).map_err(silent)?;
    let mut reply = Vec::new();
    connection.read_to_end(&mut reply).map_err(silent)?;
    let reply = String::from_utf8_lossy(&reply);
    let cut = || Error::Silent(format!("{path}: the server has ended before it replied"));
    let (head, text) = reply.split_once("\r\n\r\n").ok_or_else(cut)?;
    let status: u16 = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(cut)?;
    let json = Json::read(if text.trim().is_empty() { "{}" } else { text });
    match (status, json) {
        (200, Ok(json)) => Ok(json),
        (200, Err(why)) => Err(Error::Silent(format!("{path}: {why}"))),
        (status, Ok(json)) if json.get("error") != &Json::Null => Err(refused(path, status, json.get("error").text())),
        (status, _) => Err(refused(path, status, text.trim())),
    }
}

fn refused(path: &str, status: u16, why: &str) -> Error {
    if status == 504 {
        return Error::TimedOut(format!("{path}: {why}"));
    }
    let why = if why.contains("needs a cluster") { "only a cluster can do this, also one of a single member: Server::start_cluster(3)" } else { why };
    Error::Refused { status, message: format!("{path}: {why}") }
}

/// Returns a value for a query.
pub(crate) fn escape(value: &str) -> String {
    value.bytes().fold(String::new(), |mut all, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            all.push(byte as char);
        } else {
            all.push_str(&format!("%{byte:02X}"));
        }
        all
    })
}
