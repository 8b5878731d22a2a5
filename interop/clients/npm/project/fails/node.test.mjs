// All tests fail, except those whose names say so. TestPackagesNpm reads what is printed.

import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Lockkeeper } from 'lockkeeper'
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
  const zk = await withLockkeeper(t)
  await zk.inject({ do: 'drop', path: '/unmet' })
})

test('has an unmet fault that it disposes of', async t => {
  const zk = await withLockkeeper(t)
  const fault = await zk.inject({ do: 'drop', path: '/disposed' })
  if (!Symbol.asyncDispose) throw new Error('/disposed, Do: Drop}: no effect yet') // before Node 20
  await fault[Symbol.asyncDispose]()
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
  await assert.rejects(Lockkeeper.start({ tre: '/a\n' }), /there is no option tre, only .*tree/)
  await assert.rejects(Lockkeeper.start({ binary: '/missing' }), /The option binary, or LOCKKEEPER_BINARY in the environment, is its path/)
})
