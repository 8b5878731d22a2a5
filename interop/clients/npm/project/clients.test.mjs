// node-zookeeper-client takes a lock and sees its session end; the rest of the methods. The same with
// both clients is in native.test.mjs.

import assert from 'node:assert/strict'
import { once } from 'node:events'
import net from 'node:net'
import { test } from 'node:test'
import { promisify } from 'node:util'
import { Lockkeeper, sessionOf, tokenOf } from 'lockkeeper'
import { withLockkeeper } from 'lockkeeper/node-test'
import zookeeper from 'node-zookeeper-client'
import { holds, pure } from './holds.mjs'

test('node-zookeeper-client holds a lock until its session ends', t => holds(t, pure, pure))

// watch sets a watch, and returns an object with the promise of its event.
async function watch(client, operation, path) {
  let fire
  const event = new Promise(resolve => { fire = resolve })
  await promisify(client[operation]).call(client, path, fire)
  return { event }
}

const commit = transaction => new Promise(resolve => transaction.commit((error, results) => resolve({ error, results })))

test('node-zookeeper-client has a queue, watches and transactions, and loses its session', async t => {
  const zk = await withLockkeeper(t, { tree: '/queue\n' })
  const [one, two] = [await zk.connect(zookeeper), await zk.connect(zookeeper)]
  const { CreateMode, Event, Exception, State } = zookeeper
  const names = []
  for (const client of [one, two, one]) {
    names.push(await promisify(client.create).call(client, '/queue/n-', Buffer.from('x'), CreateMode.EPHEMERAL_SEQUENTIAL))
  }
  assert.deepEqual(names, ['/queue/n-0000000000', '/queue/n-0000000001', '/queue/n-0000000002'])

  const told = async (watch, type, path) => {
    const event = await watch.event
    assert.deepEqual([event.getType(), event.getPath()], [type, path])
  }
  const data = await watch(two, 'getData', names[0])
  const done = await watch(two, 'exists', '/done')
  const { error, results } = await commit(one.transaction()
    .check(names[0], -1)
    .setData(names[0], Buffer.from('y'))
    .create('/done', Buffer.from('z'))
    .remove(names[2]))
  assert.equal(error, null)
  assert.deepEqual([results[1].stat.version, results[2].path], [1, '/done'])
  await told(data, Event.NODE_DATA_CHANGED, names[0])
  await told(done, Event.NODE_CREATED, '/done')
  await zk.waitGone(names[2])

  const refused = await commit(one.transaction().setData('/done', Buffer.from('lost')).check(names[0], 9).create('/lost'))
  assert.equal(refused.error.getCode(), Exception.BAD_VERSION)
  assert.deepEqual(refused.results.map(result => result.err), [0, Exception.BAD_VERSION, Exception.RUNTIME_INCONSISTENCY])
  assert.deepEqual(Buffer.from((await zk.znode('/done')).data).toString(), 'z')
  await zk.waitGone('/lost')

  // A watch is still there after a lost connection.
  const later = await watch(two, 'exists', '/later')
  const again = Promise.all([once(two, 'disconnected'), once(two, 'connected')])
  await zk.disconnect(two)
  await again
  await zk.addTree('/later\n')
  await told(later, Event.NODE_CREATED, '/later')

  const [gone, children, expired] = [await watch(two, 'exists', names[0]), await watch(two, 'getChildren', '/queue'), once(one, 'expired')]
  await zk.expire(one)
  await told(gone, Event.NODE_DELETED, names[0])
  await told(children, Event.NODE_CHILDREN_CHANGED, '/queue')
  await expired
  assert.deepEqual(await promisify(two.getChildren).call(two, '/queue'), ['n-0000000001'])
  assert.equal(two.getState(), State.SYNC_CONNECTED)
})

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
    for (const cluster of [0, -1]) await assert.rejects(zk.newServer({ cluster }), new RegExp(`"cluster" is ${cluster}, and not in 1 to 9`))
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

test('an older release', async t => {
  const zk = await withLockkeeper(t, { behaveAs: '3.4' })
  await using(Lockkeeper.start({ behaveAs: '3.4' }), async own => {
    for (const { connectString } of [zk, own]) {
      const [host, port] = connectString.split(':')
      const socket = net.connect(port, host)
      socket.write('srvr')
      const [answer] = await once(socket, 'data')
      socket.destroy()
      assert.match(String(answer), /^Zookeeper version: 3\.4/)
    }
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
  for (const cluster of [0, -1]) await assert.rejects(Lockkeeper.start({ cluster }), new RegExp(`--cluster: ${cluster} is not in 1 to 9`))
  await assert.rejects(Lockkeeper.start({ binary: '/missing' }), /cannot be started.*\/missing/)
})

test('a server that is gone', async () => {
  const zk = await Lockkeeper.start()
  process.kill(zk.pid, 'SIGKILL')
  while (await zk.state().then(() => true, () => false));
  await assert.rejects(zk.stop(), /SIGKILL/)
  await assert.rejects(zk.state(), /was stopped/)
})

test('a client of a server that is dead', async () => {
  const zk = await Lockkeeper.start()
  const beside = await zk.newServer()
  const waiting = [zk, beside].map(async server => {
    const fault = await server.inject({ do: 'refuse', op: 'connect', times: -1 })
    const client = assert.rejects(server.connect(zookeeper), /has no session: .*has ended with SIGKILL/)
    await fault.waitFired()
    return { client }
  })
  const clients = await Promise.all(waiting)
  process.kill(zk.pid, 'SIGKILL')
  await Promise.all(clients.map(({ client }) => client))
  await assert.rejects(zk.connect(zookeeper), /has no session: .*has ended with SIGKILL/)
  await assert.rejects(zk.stop(), /SIGKILL/)
  await assert.rejects(zk.connect(zookeeper), /the server was stopped/)
})

test('a client of a cluster without a majority', async () => {
  const zk = await Lockkeeper.start({ cluster: 3 })
  await zk.kill(1)
  await zk.kill(2)
  const client = assert.rejects(zk.connect(zookeeper), /has no session: it was closed/)
  await zk.stop()
  await client
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
