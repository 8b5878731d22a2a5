// Each test has a server of its own, also those that run at the same time.

import { lockkeeper } from 'lockkeeper/vitest'
import zookeeper from 'node-zookeeper-client'
import { test as base, expect } from 'vitest'

const test = base.extend({ zk: lockkeeper({ tree: '/a\n' }) })
const seen = new Set()

for (const name of ['one', 'another']) {
  test.concurrent(`${name} server`, async ({ zk }) => {
    expect(seen).not.toContain(zk.connectString)
    seen.add(zk.connectString)
    const client = await zk.connect(zookeeper)
    await new Promise((resolve, reject) => client.remove('/a', error => error ? reject(error) : resolve()))
    await zk.waitGone('/a')
  })
}
