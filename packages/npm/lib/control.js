'use strict'
// Requests to test control (docs/test-control.md).

const http = require('node:http')

const SILENT = 10 * 60_000 // ms; waits of the server end earlier

const agent = new http.Agent({ keepAlive: true })

// LockkeeperError is a refusal by test control.
class LockkeeperError extends Error {
  name = 'LockkeeperError'

  constructor(endpoint, status, text) {
    super(`${endpoint}: ${text}`)
    this.endpoint = endpoint
    this.status = status
  }
}

// LockkeeperTimeoutError says that something has not happened in time. Its name is that of Node's own errors of this kind.
class LockkeeperTimeoutError extends LockkeeperError {
  name = 'TimeoutError'
}

// refused makes an error of the server's.
function refused(endpoint, status, text) {
  if (status === 504) return new LockkeeperTimeoutError(endpoint, status, text)
  if (text?.includes('needs a cluster')) text = 'only a cluster can do this, also one of a single member: give it the option cluster, as in { cluster: 3 }'
  return new LockkeeperError(endpoint, status, text)
}

// send sends a request, and returns the reply's object.
function send(method, url, endpoint, body) {
  return new Promise((resolve, reject) => {
    const data = body && JSON.stringify(body)
    const headers = data ? { 'Content-Type': 'application/json', 'Content-Length': Buffer.byteLength(data) } : {}
    const request = http.request(url + endpoint, { method, agent, headers }, reply => {
      let text = ''
      reply.setEncoding('utf8').on('data', part => { text += part }).on('error', reject).on('end', () => {
        let object
        try {
          object = JSON.parse(text)
        } catch {
          object = { error: text.trim() }
        }
        if (reply.statusCode === 200) resolve(object)
        else reject(refused(endpoint, reply.statusCode, object.error))
      })
    })
    request.setTimeout(SILENT, () => request.destroy(new Error('no answer')))
    request.on('error', reject)
    request.end(data)
  })
}

// query makes the query of a GET of those parameters that are given.
function query(parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined)
  return given.length ? '?' + new URLSearchParams(given) : ''
}

module.exports = { LockkeeperError, LockkeeperTimeoutError, send, query }
