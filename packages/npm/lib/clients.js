'use strict'
// What the two ZooKeeper clients of npm have in their own forms: node-zookeeper-client, and zookeeper
// (the native one).

const { setTimeout, clearTimeout, setImmediate } = require('node:timers')

const OPEN = 60_000 // ms; only decides when a connection has failed
const CLOSE = 2000 // a client whose server does not answer is left alone after that

// sessionID returns a session's id as test control writes it, such as 0x1000a01c3e20000.
function sessionID(of) {
  let id = of
  if (typeof of?.getSessionId === 'function') id = of.getSessionId() // node-zookeeper-client
  else if (typeof of?.client_id === 'string') id = '0x' + of.client_id // zookeeper
  if (id instanceof Uint8Array) id = '0x' + (Buffer.from(id).toString('hex') || '0')
  if (typeof id === 'string' && /^[0-9a-f]{16}$/i.test(id)) id = '0x' + id
  let n
  try {
    n = BigInt.asUintN(64, BigInt(id))
  } catch {
    throw new TypeError(`lockkeeper: this is neither the id of a session nor a client that has one: ${String(of)}`)
  }
  if (n === 0n) throw new Error('lockkeeper: this client has no session yet')
  return '0x' + n.toString(16)
}

// token returns a fencing token as a number: the czxid of a Stat of either client, or the token itself.
function token(of) {
  let n = of?.czxid ?? of
  if (n instanceof Uint8Array) n = Buffer.from(n).readBigInt64BE() // node-zookeeper-client
  n = Number(n)
  if (!Number.isSafeInteger(n) || n <= 0) throw new TypeError(`lockkeeper: this is neither a token nor a Stat: ${String(of)}`)
  return n
}

const closed = new WeakSet() // clients that do not come back

const opening = new WeakMap() // by client that has no session yet: what ends the wait for it with an error

// open makes a client of either library that connects, and returns it, with the promise that it has a session.
function open(library, connectString, options) {
  let client, connected
  if (typeof library?.createClient === 'function') {
    client = library.createClient(connectString, options)
    connected = 'connected'
    client.connect()
  } else if (typeof library === 'function') {
    client = new library({ connect: connectString, timeout: 10_000, debug_level: 1, host_order_deterministic: false, ...options })
    connected = 'connect'
    client.init({})
  } else {
    throw new TypeError('lockkeeper: connect takes the module node-zookeeper-client or zookeeper')
  }
  const session = new Promise((resolve, reject) => {
    const late = setTimeout(() => close(client, `it could not connect in ${OPEN / 1000} s`), OPEN)
    opening.set(client, why => {
      clearTimeout(late)
      opening.delete(client)
      reject(new Error(`lockkeeper: a client for ${connectString} has no session: ${why}`))
    })
    for (const event of ['expired', 'close']) client.once(event, () => closed.add(client)) // of either library
    client.once(connected, () => {
      clearTimeout(late)
      opening.delete(client)
      resolve()
    })
  })
  return { client, session }
}

// connecting is whether a client has not had a session yet.
const connecting = client => opening.has(client)

// close closes a client, and returns when its session has ended, or soon if the server does not answer. If the
// client has no session yet, nobody waits for that any longer; why says the reason.
async function close(client, why = 'it was closed') {
  if (connecting(client)) {
    opening.get(client)(why)
    await new Promise(resolve => setImmediate(resolve)) // node-zookeeper-client has a socket then, without which it cannot be closed
  }
  if (closed.has(client)) return
  return new Promise(resolve => {
    const late = setTimeout(done, CLOSE)
    function done() {
      clearTimeout(late)
      resolve()
    }
    for (const event of ['disconnected', 'expired', 'close']) client.once(event, done) // of either library
    const connected = client.getState?.().getName() !== 'DISCONNECTED'
    client.close()
    if (!connected) done() // no event follows
  })
}

module.exports = { sessionID, token, open, connecting, close }
