'use strict'
// All tests fail: the first one kills the process of their server.

const { useLockkeeper } = require('lockkeeper/jest')

const zk = useLockkeeper()

test('has a server that dies', async () => {
  await zk.guard('/dead')
  process.kill(zk.pid, 'SIGKILL')
})

test('comes later', () => {})
