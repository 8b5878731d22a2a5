// All tests fail, except those whose names say so. TestPackagesNpm reads what is printed.

import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Lockkeeper, LockkeeperTimeoutError } from 'lockkeeper'
import { withLockkeeper } from 'lockkeeper/node-test'

test('shows the server', async t => {
  const zk = await withLockkeeper(t, { tree: '/here\n' })
  assert.equal(await zk.leader(), 2)
})

test('ends while it waits', { timeout: 2000 }, async t => {
  const zk = await withLockkeeper(t)
  await zk.waitExists('/late')
})

test('has an unmet fault', async t => {
  const zk = await withLockkeeper(t, { tree: '/unmet-here\n' })
  await zk.inject({ do: 'drop', path: '/unmet' })
})

test('does not await a wait', async t => {
  const zk = await withLockkeeper(t)
  zk.waitExists('/forgotten').catch(() => {})
})

test('has an unmet fault that it disposes of', async t => {
  const zk = await withLockkeeper(t)
  const fault = await zk.inject({ do: 'drop', path: '/disposed' })
  if (!Symbol.asyncDispose) throw new Error("its fault { do: 'drop', path: '/disposed' } has had no effect") // before Node 20
  await fault[Symbol.asyncDispose]()
})

test('stops its server before a verdict', async t => {
  const zk = await withLockkeeper(t)
  await zk.guard('/stopped')
  await zk.stop()
})

test('passes', async t => {
  const zk = await withLockkeeper(t)
  assert.equal(await (await zk.inject({ do: 'drop', path: '/a' })).remove(), false)
  await zk.inject({ do: 'drop', path: '/a', optional: true })
  await (await zk.guard('/lock')).verdict()
  assert.equal(await zk.leader(), 1)
  assert.match(await zk.report(), /the znodes:\nnone\nlockkeeper: the last 0 of 0 requests/)

  const own = await Lockkeeper.start()
  const port = Number(own.connectString.split(':')[1])
  await assert.rejects(Lockkeeper.start({ port }), /in use/)
  await own.stop()
  assert.equal(await zk.leader({ among: [1] }), 1)
  await assert.rejects(zk.waitExists('/a', { timeoutMs: 20 }), error => error instanceof LockkeeperTimeoutError && error.name === 'TimeoutError' && error.message.includes('20ms'))
  await assert.rejects(zk.partition([1]), /the option cluster, as in { cluster: 3 }/)
  await assert.rejects(Lockkeeper.start({ tre: '/a\n' }), /there is no option tre, only .*tree/)
  await assert.rejects(Lockkeeper.start({ binary: '/missing' }), /The option binary, or LOCKKEEPER_BINARY in the environment, is its path/)
})
