import { Lockkeeper, StartOptions } from './index.js'

/** Starts a server for a test of node:test, and stops it when the test has ended. All such servers of a file share a process. The test
 * fails if check() does. If it has failed, report() is among its diagnostics, with Node 20.12 or newer. */
export function withLockkeeper(t: { after(hook: () => Promise<void>): void, readonly passed?: boolean, diagnostic?(text: string): void }, options?: StartOptions): Promise<Lockkeeper>
