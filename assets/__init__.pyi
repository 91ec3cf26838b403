from nevermore.assets.definitions import load_project as load_project
from nevermore.assets.io_manager import NevermoreIOManager as NevermoreIOManager
from nevermore.assets.project import NevermoreResource as NevermoreResource
