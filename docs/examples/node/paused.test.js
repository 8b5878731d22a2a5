'use strict'
// Worker A holds the lock and is paused, until its session ends. Worker B takes over. Then A wakes up,
// and writes as if nothing had happened.

const assert = require('node:assert/strict')
const { fork } = require('node:child_process')
const { on } = require('node:events')
const path = require('node:path')
const { test } = require('node:test')
const { withLockkeeper } = require('lockkeeper/node-test')
const { Store } = require('./store.js')

// Worker runs worker.js in a process.
class Worker {
  constructor(t, zk) {
    this.process = fork(path.join(__dirname, 'worker.js'), [zk.connectString])
    this.messages = on(this.process, 'message')
    t.after(() => this.process.kill('SIGKILL'))
  }

  async next() { return (await this.messages.next()).value[0] }

  async write(store, text) {
    this.process.send(text)
    const { write, token } = await this.next()
    return store.write(write, BigInt(token))
  }
}

async function story(t, careless) {
  const zk = await withLockkeeper(t)
  const guard = await zk.guard('/locks/report')
  const store = new Store({ careless, audit: token => guard.write(token, { unchecked: careless }) })

  const a = new Worker(t, zk)
  const { session } = await a.next()
  assert.ok((await a.next()).held)
  const b = new Worker(t, zk)
  await b.next()
  await zk.waitWaiters('/locks/report', 1)
  assert.ok(await a.write(store, 'the first of A'))

  a.process.kill('SIGSTOP')
  await zk.expire(session)
  assert.ok((await b.next()).held)
  assert.ok(await b.write(store, 'of B'))

  a.process.kill('SIGCONT')
  const late = await a.write(store, 'the second of A')
  return { late, text: store.text, ...await guard.verdict() }
}

test('a store that checks tokens refuses the paused worker', async t => {
  const { late, text, ok, violations } = await story(t, false)
  assert.equal(late, false)
  assert.equal(text, 'of B')
  assert.deepEqual([ok, violations], [true, []])
})

test('a store that does not has lost a write, and the verdict says so', async t => {
  const { late, text, ok, violations } = await story(t, true)
  assert.equal(late, true)
  assert.equal(text, 'the second of A')
  assert.equal(ok, false)
  assert.match(violations.join('\n'), /token/)
})
