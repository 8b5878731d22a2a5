'use strict'
// What useLockkeeper does between tests, with real and with fake timers.

const { promisify } = require('node:util')
const zookeeper = require('node-zookeeper-client')
const { useLockkeeper } = require('lockkeeper/jest')

const zk = useLockkeeper({ cluster: 3, electionTimeoutMs: 500, tree: '/a = "x"\n' })
const own = useLockkeeper({ logLevel: 'warn' }) // in a process of its own

const set = (client, path, data) => promisify(client.setData).call(client, path, Buffer.from(data))

let before
test('spoils the state', async () => {
  before = zk.connectString
  const client = await zk.connect(zookeeper)
  await set(client, '/a', 'y')
  await zk.inject({ do: 'refuse', op: 'connect', times: -1, optional: true })
  await zk.disk({ member: 2, delayMs: 5000 })
  await zk.partition([1], [2, 3])
  await zk.kill(3)
  await own.disk({ full: true })
  await expect(own.addTree('/a\n')).rejects.toThrow(/no space left/)
  await own.inject({ do: 'refuse', op: 'connect', times: -1, optional: true })
})

test('finds it as it was', async () => {
  expect(zk.connectString).toBe(before)
  await zk.waitData('/a', 'x')
  const state = await zk.state()
  expect(state.faults.filter(fault => !fault.text.includes('removed'))).toEqual([])
  expect(state.members.map(member => member.role)).not.toContain('stopped')
  await set(await zk.connect(zookeeper, { retries: 3 }), '/a', 'z')
  await own.connect(zookeeper)
})

test('works with fake timers', async () => {
  jest.useFakeTimers()
  try {
    const snapshot = await zk.snapshot()
    await zk.addTree('/b\n')
    await zk.waitExists('/b')
    await zk.restore(snapshot)
    await zk.waitGone('/b')
    await zk.removeSnapshot(snapshot)
    await expect(zk.restore(snapshot)).rejects.toMatchObject({ status: 404 })
  } finally {
    jest.useRealTimers()
  }
})

test('names what is refused', async () => {
  await expect(zk.waitGone('/a', { timeoutMs: 50 })).rejects.toMatchObject({ name: 'TimeoutError', status: 504, endpoint: '/wait/gone' })
  await expect(zk.expire('0x1')).rejects.toMatchObject({ status: 404 })
})
