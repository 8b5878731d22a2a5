import module from './node-test.js'

export const { withLockkeeper } = module
