import { Lockkeeper, StartOptions } from './index.js'

/** A fixture for Vitest's test.extend: each test that uses it has a server of its own, and fails if check() does. */
export function lockkeeper(options?: StartOptions): (context: { task: any }, use: (zk: Lockkeeper) => Promise<void>) => Promise<void>
