import { Lockkeeper, StartOptions } from './index.js'

/** Starts a server for a test of node:test, and stops it when the test has ended. All such servers of a file share a process. */
export function withLockkeeper(t: { after(hook: () => Promise<void>): void }, options?: StartOptions): Promise<Lockkeeper>
