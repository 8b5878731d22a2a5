// Checked by tsc --strict, and never run.

import test from 'node:test'
import { Lockkeeper, LockkeeperError, LockkeeperTimeoutError, sessionOf, tokenOf } from 'lockkeeper'
import { useLockkeeper } from 'lockkeeper/jest'
import { withLockkeeper } from 'lockkeeper/node-test'
import { lockkeeper } from 'lockkeeper/vitest'
import { test as base } from 'vitest'
import ZooKeeper from 'zookeeper'

declare const pure: { createClient(connectString: string, options?: { sessionTimeout: number }): { getSessionId(): Buffer, close(): void } }

test('types', async t => {
  await using own: Lockkeeper = await Lockkeeper.start({ cluster: 3, tree: '/a\n', args: ['--no-ttl'] })
  const zk = await withLockkeeper(t, { electionTimeoutMs: 500 })
  const client = await zk.connect(pure, { sessionTimeout: 1000 })
  client.close()
  const native: ZooKeeper = await zk.connect(ZooKeeper, { timeout: 1000 })
  await zk.expire(client)
  await zk.expire(native)
  await zk.expire(1n)
  const id: string = sessionOf(client)
  const token: number = tokenOf({ czxid: Buffer.alloc(8) })
  await zk.waitHeld('/lock', id, { timeoutMs: 10 })
  await using fault = await zk.inject({ do: 'answer', error: 'NoNode', op: 'get*', times: -1 })
  const fired: boolean = await fault.remove()
  const guard = await own.guard('/lock')
  const reply = await guard.write(token, { resource: 'file', unchecked: fired })
  if (!reply.accepted) console.log(reply.reason.length)
  const { ok, violations }: { ok: boolean, violations: string[] } = await guard.verdict()
  const { data, stat } = await zk.znode('/a')
  console.log(ok, violations, data.length, stat.czxid.toFixed(), stat.ephemeralOwner?.length)
  const leader: number = await zk.leader({ among: [1], timeoutMs: 1000 })
  console.log(leader, (await zk.report()).length)
  await zk.inject({ do: 'drop', optional: true })
  await zk.check()
  await Lockkeeper.start({ port: 2181 })
  const { shown, locks } = await zk.state({ member: 1 })
  console.log(shown.toFixed(), locks[0]?.queue.length)
  try {
    await zk.get('/state')
  } catch (error) {
    if (error instanceof LockkeeperTimeoutError) console.log(error.name satisfies 'TimeoutError')
    if (error instanceof LockkeeperError) console.log(error.status.toFixed())
  }

  // @ts-expect-error: nothing is called so
  zk.nothing()
  // @ts-expect-error: an answer needs an error
  await zk.inject({ do: 'answer' })
  // @ts-expect-error: refuse is for the handshake
  await zk.inject({ do: 'refuse', op: 'create' })
  // @ts-expect-error: not in a string
  await Lockkeeper.start({ cluster: '3' })
  // @ts-expect-error: only start makes one
  new Lockkeeper()
})

const server: Lockkeeper = useLockkeeper({ cluster: 3 })
console.log(server.connectString)

const extended = base.extend<{ zk: Lockkeeper }>({ zk: lockkeeper({ tree: '/a\n' }) })
extended('fixture', async ({ zk }) => {
  const all: string = zk.connectString
  console.log(all)
})
