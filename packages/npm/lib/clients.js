'use strict'
// What the two ZooKeeper clients of npm have in their own forms: node-zookeeper-client, and zookeeper
// (the native one).

const { setTimeout, clearTimeout } = require('node:timers')

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

// open connects a client of either library, and returns it when it has a session.
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
  return new Promise((resolve, reject) => {
    const late = setTimeout(() => {
      client.close()
      reject(new Error(`lockkeeper: a client could not connect to ${connectString} in ${OPEN / 1000} s`))
    }, OPEN)
    for (const event of ['expired', 'close']) client.once(event, () => closed.add(client)) // of either library
    client.once(connected, () => {
      clearTimeout(late)
      resolve(client)
    })
  })
}

// close closes a client, and returns when its session has ended, or soon if the server does not answer.
function close(client) {
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

module.exports = { sessionID, token, open, close }
