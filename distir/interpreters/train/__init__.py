"""
Reference implementations of the `train` dialect, one file per family. Importing this
package registers them.
"""
