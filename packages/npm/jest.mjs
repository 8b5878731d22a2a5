import module from './jest.js'

export const { useLockkeeper } = module
