// Checked by tsc --strict, and never run: with require.

import { Lockkeeper, type State } from 'lockkeeper'
import { useLockkeeper } from 'lockkeeper/jest'
import { withLockkeeper } from 'lockkeeper/node-test'

async function run(): Promise<State> {
  const zk: Lockkeeper = await withLockkeeper({ after() {} })
  return zk.state()
}

console.log(run, useLockkeeper, Lockkeeper.start)
