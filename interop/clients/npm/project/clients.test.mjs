// node-zookeeper-client takes a lock and sees its session end; the rest of the methods. The same with
// both clients is in native.test.mjs.

import assert from 'node:assert/strict'
import { once } from 'node:events'
import { test } from 'node:test'
import { promisify } from 'node:util'
import { Lockkeeper, sessionOf, tokenOf } from 'lockkeeper'
import { withLockkeeper } from 'lockkeeper/node-test'
import zookeeper from 'node-zookeeper-client'
import { holds, pure } from './holds.mjs'

test('node-zookeeper-client holds a lock until its session ends', t => holds(t, pure, pure))

test('the forms of a session', async () => {
  const bytes = Buffer.from('01000a01c3e20000', 'hex')
  for (const form of ['0x1000a01c3e20000', '01000a01c3e20000', 0x1000a01c3e20000n, bytes, { getSessionId: () => bytes }, { client_id: '1000a01c3e20000' }]) {
    assert.equal(sessionOf(form), '0x1000a01c3e20000')
  }
  assert.equal(sessionOf(-1n), '0xffffffffffffffff')
  assert.throws(() => sessionOf(Buffer.alloc(8)), /no session yet/)
  assert.throws(() => sessionOf({}), TypeError)
  assert.equal(tokenOf({ czxid: Buffer.from('0000000200000001', 'hex') }), 8589934593)
  assert.throws(() => tokenOf(undefined), TypeError)
})

test('servers and namespaces', async () => {
  await using(Lockkeeper.start(), async zk => {
    const second = await zk.newServer({ cluster: 2, tree: '/two\n' })
    await second.waitExists('/two', { member: 2 })
    assert.equal((await zk.servers()).length, 2)
    assert.equal((await zk.state()).tree, '')
    const client = await second.connect(zookeeper)
    await client // a client is no promise
    await second.stop()
    assert.equal((await zk.servers()).length, 1)

    const namespace = await zk.namespace()
    const inside = zookeeper.createClient(namespace.connectString)
    inside.connect()
    await once(inside, 'connected')
    await promisify(inside.create).call(inside, '/x')
    await zk.waitExists(namespace.path + '/x')
    inside.close()
    await namespace.remove()
    await zk.waitGone(namespace.path)
  })
})

test('waits and time', async t => {
  const zk = await withLockkeeper(t)
  const client = await zk.connect(zookeeper)
  client.exists('/x', () => {}, () => {})
  await zk.waitWatch('/x', { session: client })
  await promisify(client.create).call(client, '/x', Buffer.from('data'))
  await zk.waitData('/x', Buffer.from('data'))
  await zk.waitChildren('/', 2) // and /zookeeper
  await zk.waitRequests('create*', 1, { path: '/x' })
  const fault = await zk.inject({ do: 'closeBefore', op: 'getData', session: client })
  client.getData('/x', () => {})
  await fault.waitFired()
  assert.ok(await fault.remove())
  assert.deepEqual(await zk.advance(1000), { expired: [], deleted: [] })
  assert.deepEqual(await zk.endTTLs(), [])
  assert.deepEqual(Buffer.from((await zk.znode('/x')).data).toString(), 'data')
})

test('a start that fails shows what the program says', async () => {
  await assert.rejects(Lockkeeper.start({ args: ['--nonsense'] }), /exit code 2[^]*unknown flag --nonsense/)
  await assert.rejects(Lockkeeper.start({ tree: 'nonsense' }), /nonsense/)
  await assert.rejects(Lockkeeper.start({ binary: '/missing' }), /cannot be started.*\/missing/)
})

test('a server that is gone', async () => {
  const zk = await Lockkeeper.start()
  process.kill(zk.pid, 'SIGKILL')
  while (await zk.state().then(() => true, () => false));
  await assert.rejects(zk.stop(), /SIGKILL/)
  await assert.rejects(zk.state(), /was stopped/)
})

// using does what "await using" does, which this version of Node may not have.
async function using(resource, body) {
  const got = await resource
  try {
    await body(got)
  } finally {
    await got[Symbol.asyncDispose]()
  }
}
