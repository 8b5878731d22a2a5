// The native client takes a lock from node-zookeeper-client, and the reverse.

import { once } from 'node:events'
import { test } from 'node:test'
import ZooKeeper from 'zookeeper'
import { holds, pure } from './holds.mjs'

const native = {
  library: ZooKeeper,
  create: (client, path) => client.create(path, '', ZooKeeper.constants.ZOO_EPHEMERAL | ZooKeeper.constants.ZOO_SEQUENCE),
  stat: (client, path) => client.exists(path, false),
  ended: client => once(client, 'close'),
}

test('zookeeper holds a lock until its session ends', t => holds(t, native, pure))
test('zookeeper waits for a lock', t => holds(t, pure, native))
