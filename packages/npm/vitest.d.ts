import { Lockkeeper, StartOptions } from './index.js'

/** A fixture for Vitest's test.extend: each test that uses it has a server of its own. */
export function lockkeeper(options?: StartOptions): (context: {}, use: (zk: Lockkeeper) => Promise<void>) => Promise<void>
