'use strict'
// All tests fail, except the last one.

const { useLockkeeper } = require('lockkeeper/jest')

const zk = useLockkeeper()

test('ends while it waits', async () => { await zk.waitExists('/late') }, 2000)

test('has an unmet fault', async () => { await zk.inject({ do: 'drop', path: '/unmet' }) })

test('has a bad verdict', async () => { await (await zk.guard('/judged')).write(12345) })

test('passes', async () => { await (await zk.guard('/judged')).verdict() })
