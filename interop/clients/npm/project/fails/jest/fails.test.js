'use strict'
// All tests fail, except the last one.

const { useLockkeeper } = require('lockkeeper/jest')

const zk = useLockkeeper({ tree: '/unmet-here\n' })

test('ends while it waits', async () => { await zk.waitExists('/late') }, 2000)

test('has an unmet fault', async () => { await zk.inject({ do: 'drop', path: '/unmet' }) })

test('does not await a wait', async () => { zk.waitExists('/forgotten').catch(() => {}) })

test('has a bad verdict', async () => { await (await zk.guard('/judged')).write(12345) })

test('passes', async () => { await (await zk.guard('/judged')).verdict() })
