// All tests fail.

import { lockkeeper } from 'lockkeeper/vitest'
import { test as base, expect } from 'vitest'

const test = base.extend({ zk: lockkeeper({ tree: '/here\n/unmet-here\n' }) })

test('shows the server', async ({ zk }) => { expect(await zk.leader()).toBe(2) })

test('ends while it waits', async ({ zk }) => { await zk.waitExists('/late') }, 2000)

test('does not await a wait', async ({ zk }) => { zk.waitExists('/forgotten').catch(() => {}) })

test('has an unmet fault', async ({ zk }) => { await zk.inject({ do: 'drop', path: '/unmet' }) })
