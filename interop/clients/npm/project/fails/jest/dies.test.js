'use strict'
// The first test fails, since it kills the process of its server.

const { useLockkeeper } = require('lockkeeper/jest')

const zk = useLockkeeper({ tree: '/a\n' })

test('has a server that dies', async () => {
  await zk.guard('/dead')
  process.kill(zk.pid, 'SIGKILL')
})

test('comes later', async () => {
  expect((await zk.state()).tree).toBe('/a\n')
  await zk.stop()
})

test('comes after one that has stopped the server', async () => {
  expect((await zk.state()).tree).toBe('/a\n')
})
