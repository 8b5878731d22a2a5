// Runs the cases of packages/judged.json, which says what they mean: each is a test for withLockkeeper, whose runner
// is here.

import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import net from 'node:net'
import { test } from 'node:test'
import { setTimeout } from 'node:timers/promises'
import { withLockkeeper } from 'lockkeeper/node-test'

const { cases } = JSON.parse(readFileSync(new URL('judged.json', import.meta.url), 'utf8'))

const runs = pid => {
  try {
    return process.kill(pid, 0)
  } catch {
    return false
  }
}

// handshake sends what a client begins with, and returns when the server has answered, or closed the connection.
const handshake = address => new Promise(resolve => {
  const request = Buffer.alloc(48) // of a new session
  request.writeInt32BE(44)
  request.writeInt32BE(10_000, 16)
  request.writeInt32BE(16, 28)
  const socket = net.connect(Number(address.split(':')[1]), '127.0.0.1', () => socket.write(request))
  for (const event of ['data', 'close', 'error']) socket.on(event, () => { socket.destroy(); resolve() })
})

// block disposes of what a function makes as "await using" does, which Node 20 does not have, also when an error leaves it.
async function block(raise, make) {
  const fault = await make()
  try {
    if (raise) throw new Error('raised')
  } catch {
    // as the test that catches it outside
  } finally {
    await fault[Symbol.asyncDispose]()
  }
}

const steps = {
  inject: async (zk, fault, last) => { last.fault = await zk.inject(fault) },
  remove: (zk, _, last) => last.fault.remove(),
  scoped: (zk, fault, _, { raise }) => block(raise, () => zk.inject(fault)),
  guard: async (zk, path, last) => { last.guard = await zk.guard(path) },
  write: (zk, token, last) => last.guard.write(token),
  guarded: async (zk, path, _, { write }) => { await (await zk.guard(path)).write(write) },
  verdict: (zk, _, last) => last.guard.verdict(),
  connect: zk => handshake(zk.connectString),
  refused: (zk, what) => assert.rejects(what === 'partition' ? zk.partition([1], [2]) : zk.restart(1), { name: 'LockkeeperError' }),
  kill: (zk, member) => zk.kill(member),
  snapshot: async (zk, _, last) => { last.snapshot = await zk.snapshot() },
  restore: (zk, _, last) => zk.restore(last.snapshot),
  stop: zk => zk.stop(),
  killProcess: async zk => {
    process.kill(zk.pid, 'SIGKILL')
    while (runs(zk.pid)) await setTimeout(10)
  },
}

// report runs a case, and returns why it fails, or "".
async function report({ cluster, steps: all }) {
  const after = []
  const said = []
  try {
    const zk = await withLockkeeper({ passed: true, after: hook => after.push(hook), diagnostic: text => said.push(text) }, cluster ? { cluster: 3 } : {})
    const last = {}
    for (const step of all) {
      const [name, argument] = Object.entries(step).find(([name]) => name === 'guarded' || name === 'scoped') ?? Object.entries(step)[0]
      await steps[name](zk, argument, last, step)
    }
  } catch (error) {
    said.push(error.message)
    after.push(() => { throw error })
  }
  let failed = false
  for (const hook of after) {
    try {
      await hook()
    } catch (error) {
      failed = true
      said.push(error.message)
    }
  }
  return failed ? said.join('\n') : ''
}

for (const one of cases) {
  test(one.name, { skip: Symbol.asyncDispose || !one.steps.some(step => step.scoped) ? false : 'no Symbol.asyncDispose' }, async () => {
    const why = await report(one)
    if (!one.fails) assert.equal(why, '')
    else for (const text of one.fails) assert.ok(why.includes(text), `${JSON.stringify(text)} is not in: ${why}`)
  })
}
