// What a client needs for holds, and node-zookeeper-client's.

import assert from 'node:assert/strict'
import { once } from 'node:events'
import { promisify } from 'node:util'
import { sessionOf, tokenOf } from 'lockkeeper'
import { withLockkeeper } from 'lockkeeper/node-test'
import zookeeper from 'node-zookeeper-client'

export const pure = {
  library: zookeeper,
  create: (client, path) => promisify(client.create).call(client, path, zookeeper.CreateMode.EPHEMERAL_SEQUENTIAL),
  stat: (client, path) => promisify(client.exists).call(client, path),
  ended: client => once(client, 'expired'),
}

// holds checks that one client holds a lock until its session ends, and then the other one.
export async function holds(t, mine, other) {
  const zk = await withLockkeeper(t, { tree: '/lock\n' })
  const [holder, waiter] = [await zk.connect(mine.library), await zk.connect(other.library)]
  const held = await mine.create(holder, '/lock/n-')
  await other.create(waiter, '/lock/n-')
  await zk.waitWaiters('/lock', 1)
  const { locks: [lock], sessions } = await zk.state()
  assert.deepEqual([lock.holder, lock.queue], [sessionOf(holder), [sessionOf(waiter)]])
  assert.equal(lock.token, tokenOf(await mine.stat(holder, held)))
  assert.ok(sessions.some(({ id }) => BigInt(id) === BigInt(sessionOf(holder))))

  const ended = mine.ended(holder)
  await zk.expire(BigInt(sessionOf(holder)))
  await zk.waitHeld('/lock', waiter)
  await ended
}
