import { Lockkeeper, StartOptions } from './index.js'

type Hook = (hook: () => Promise<void>) => unknown

/**
 * At the top of a test file, or in a describe: starts a server before the tests, calls check() and reset() after
 * each, and stops it after all. After a test that has stopped it, or in which its process has ended, another one starts.
 * What it returns works in tests and hooks. The hooks are Jest's globals, or those that are given.
 */
export function useLockkeeper(options?: StartOptions, hooks?: { beforeAll: Hook, afterEach: Hook, afterAll: Hook }): Lockkeeper
