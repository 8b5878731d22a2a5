// All tests fail: the process with their servers is killed.

import { test } from 'node:test'
import { withLockkeeper } from 'lockkeeper/node-test'

test('has a server that dies', async t => {
  const zk = await withLockkeeper(t)
  await zk.guard('/dead')
  await zk.inject({ do: 'drop', path: '/dead' })
  process.kill(zk.pid, 'SIGKILL')
})

test('comes later', async t => { await withLockkeeper(t) })
